-- A log of a release that wrote no schema number: three requests, of which the first is no longer there, with their impressions.
CREATE TABLE batches (
  first integer primary key, count integer not null, bytes integer not null, at real not null, text blob not null);
INSERT INTO "batches" VALUES(2,1,80,20.0,X'7B226964223A202233222C202263697479223A202237222C20226E223A20312C2022636C69636B223A20307D0A');
INSERT INTO "batches" VALUES(3,1,80,21.0,X'7B226964223A202231222C202263697479223A202237222C20226E223A20302C2022636C69636B223A20317D0A');
CREATE TABLE checksums (first integer primary key, checksum integer not null);
INSERT INTO "checksums" VALUES(2,1529493927);
INSERT INTO "checksums" VALUES(3,70470875);
CREATE TABLE facts (name text primary key, value blob not null) without rowid;
INSERT INTO "facts" VALUES('clock moved',5.0);
INSERT INTO "facts" VALUES('joined by',X'EF3B69CB2978BA14F2345C800FA2B77E');
INSERT INTO "facts" VALUES('log','01234567');
INSERT INTO "facts" VALUES('needed from',2);
CREATE TABLE places (
  id integer primary key check (id = 1), end integer not null, bytes integer not null);
INSERT INTO "places" VALUES(1,4,160);
CREATE TABLE positions (partition text primary key, following integer not null) without rowid;
INSERT INTO "positions" VALUES('clicks/0',17);
CREATE TABLE remembered (
  number integer primary key, key text not null unique, first integer not null, end integer not null, digest blob not null);
INSERT INTO "remembered" VALUES(1,'first',0,2,X'96F1E788D8B6534E844411E6494CE71B');
INSERT INTO "remembered" VALUES(2,'second',2,3,X'FC7157B6666E85FCE2363087C379EDB8');
CREATE TABLE shown (
  number integer primary key, key text not null unique, at real not null, clicked integer not null, bytes integer not null,
  line blob not null);
INSERT INTO "shown" VALUES(1,'1',0.0,1,129,X'7B226964223A202231222C202263697479223A202237222C20226E223A20312C2022636C69636B223A20307D');
INSERT INTO "shown" VALUES(2,'2',0.0,0,129,X'7B226964223A202232222C202263697479223A202237222C20226E223A20312C2022636C69636B223A20307D');
INSERT INTO "shown" VALUES(3,'3',20.0,0,129,X'7B226964223A202233222C202263697479223A202237222C20226E223A20312C2022636C69636B223A20307D');
CREATE INDEX shown_by_time on shown (at);

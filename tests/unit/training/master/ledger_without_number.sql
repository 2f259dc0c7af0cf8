-- The ledger of a release that wrote no schema number: its tables, and rows in most of them.
create table if not exists facts (id integer primary key check (id = 1), value text not null);
create table if not exists passes (
  ordinal integer primary key, id text not null unique, splits text not null, event_time_max integer not null,
  ends_day integer not null, state text not null default 'waiting', epoch integer not null default 0,
  reason text not null default '', auc_before real, auc real, training_at real, trained_at real, done_at real,
  version integer, seconds text not null default '{}');
create index if not exists passes_not_done on passes (ordinal) where state != 'done';
create table if not exists files (pass integer not null, path text not null, bytes integer not null,
  primary key (pass, path));
create table if not exists tasks (
  id text primary key, pass integer not null, path text not null, start integer not null, stop integer not null,
  state text not null, failures integer not null default 0, lost_leases integer not null default 0,
  attempt text not null default '', trainer integer,
  lease_ends real not null default 0, leased_at real, running integer not null default 0,
  checked integer not null default 0,
  records integer not null default 0, shows integer not null default 0, clicks integer not null default 0,
  ignored integer not null default 0, padding integer not null default 0, trained integer not null default 0,
  repeated integer not null default 0, positives blob, negatives blob, error text not null default '');
create index if not exists tasks_by_pass on tasks (pass, state);
create table if not exists refusals (task text not null, pass integer not null, reason text not null,
  lines integer not null, examples text not null, primary key (task, reason));
create index if not exists refusals_by_pass on refusals (pass);
create table if not exists sample_lines (task text primary key, pass integer not null, data blob not null);
create index if not exists sample_lines_by_pass on sample_lines (pass);
create table if not exists saves (
  pass integer primary key, generation integer not null, steps text not null, kind text, version integer,
  checkpoint text, began_at real not null, stage text not null, saved blob, written blob);
create table if not exists versions (
  id integer primary key, kind text not null, base integer not null, parent integer, pass integer not null,
  state text not null, keys integer not null, at real not null, reason text not null default '');
create table if not exists checkpoints (
  name text primary key, pass integer not null, follows integer, base integer, at real not null, mid text,
  damaged text);
create table if not exists logs (checkpoint text primary key, stands_on text not null);
create table if not exists kept (
  checkpoint text not null, task text not null, state text not null, trained integer not null, repeated integer not null,
  positives blob, negatives blob, primary key (checkpoint, task));
create table if not exists collected (task text primary key, pass integer not null, records integer not null, data blob not null);
create index if not exists collected_by_pass on collected (pass);
create table if not exists collected_series (task text not null, place integer not null, pass integer not null, data blob not null,
  primary key (task, place));
create index if not exists collected_series_by_pass on collected_series (pass);
create table if not exists learning (pass integer primary key, document text not null);
create table if not exists groups (task text primary key, pass integer not null, slot text not null, data blob not null);
create index if not exists groups_by_pass on groups (pass);
create table if not exists held_out (task text primary key, pass integer not null, records integer not null);
create index if not exists held_out_by_pass on held_out (pass);
create table if not exists qualities (pass integer not null, moment text not null, document text not null,
  primary key (pass, moment));
create table if not exists table_rows (pass integer primary key, document text not null);
create table if not exists touched (task text primary key, pass integer not null, data blob not null, counts blob not null);
create index if not exists touched_by_pass on touched (pass);
create table if not exists left_out (pass integer not null, path text not null, offset integer not null, reason text not null,
  task text not null, primary key (pass, path, offset));
create table if not exists further (task text not null, place integer not null, pass integer not null, path text not null,
  start integer not null, stop integer not null, primary key (task, place));
create index if not exists further_by_pass on further (pass);
create table if not exists refused_files (task text not null, pass integer not null, path text not null, lines integer not null,
  primary key (task, path));
create index if not exists refused_files_by_pass on refused_files (pass);
create table if not exists drifts (pass integer primary key, columns text not null);
create table if not exists recoveries (
  id integer primary key autoincrement, role text not null, reason text not null, at real not null, seconds real,
  rolled_back integer not null default 0);
pragma journal_mode = wal;
insert into facts values (1, '{"generation": 3, "follows": 7, "base": 7, "id": "abc"}');
insert into passes (ordinal, id, splits, event_time_max, ends_day, state) values
  (1, '20200401/00', '["20200401/00"]', 1585702800, 0, 'done'), (2, '20200401/01', '["20200401/01"]', 1585706400, 0, 'checking');
insert into files values (1, 'a', 10), (2, 'b', 20);
insert into tasks (id, pass, path, start, stop, state, records, trained, attempt, trainer, lease_ends) values
  ('1.0', 1, 'a', 0, 0, 'done', 8, 1, '', null, 0), ('2.0', 2, 'b', 0, 10, 'done', 4, 0, '', null, 0),
  ('2.1', 2, 'b', 10, 20, 'leased', 0, 0, '2.1:5', 3, 1585706400.5);
insert into refusals values ('1.0', 1, 'no_colon', 2, '["1 0 17"]');
insert into sample_lines values ('1.0', 1, x'00ff');
insert into saves values (1, 3, '["base", "checkpoint"]', 'base', 7, '20200401-00-g3', 1585702900.0, 'done', null, null);
insert into versions values (7, 'base', 7, null, 1, 'published', 100, 1585702950.0, '');
insert into checkpoints values ('20200401-00-g3', 1, 7, 7, 1585702940.0, null, null);
insert into qualities values (1, 'before', '{"shows": 8.0}');
insert into touched values ('2.0', 2, x'01', x'02');
insert into further values ('1.0', 0, 1, 'c', 0, 0);
insert into left_out values (2, 'b', 3, 'skipped', '');
insert into recoveries (role, reason, at, seconds, rolled_back) values ('pserver', 'lost', 1585702800.0, 2.5, 4);

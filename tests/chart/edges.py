"""Who may talk to whom, said once: the picture of docs/architecture.md, with the ports of a default install."""

MASTER, STATUS = 8700, 8701
PSERVER, PSERVER_ADMIN = 8800, 8790
FILES, TRACKING, TRANSFER = 8080, 5000, 8300
CUBE, SERVING = 8600, 8400
DOORS = (SERVING, 8402)
# (who asks, who answers, at which port).
EDGES = {
    ("master", "file-server", FILES),
    ("master", "tracking", TRACKING),
    ("master", "pserver", PSERVER_ADMIN),
    ("trainer", "master", MASTER),
    ("trainer", "pserver", PSERVER),
    ("trainer", "file-server", FILES),
    ("trainer", "tracking", TRACKING),
    ("pserver", "master", MASTER),
    ("pserver", "file-server", FILES),
    ("cube-transfer", "file-server", FILES),
    ("cube", "cube-transfer", TRANSFER),
    ("cube", "file-server", FILES),
    ("serving", "cube-transfer", TRANSFER),
    ("serving", "file-server", FILES),
    ("serving", "cube", CUBE),
    ("scoring", "cube-transfer", TRANSFER),
    ("scoring", "file-server", FILES),
    *(("client", "serving", port) for port in DOORS),
    ("client", "cube-transfer", TRANSFER),
    ("client", "cube", CUBE),
    ("client", "master", STATUS),
}
# With an intake these, too.
INTAKE = 8310
EDGES_OF_AN_INTAKE = {(source, "intake", INTAKE) for source in ("master", "trainer", "client")}
# What Prometheus reads.
METRICS = {
    ("master", STATUS),
    ("trainer", 8740),
    ("pserver", PSERVER_ADMIN),
    ("cube", 8601),
    ("cube-transfer", TRANSFER),
    ("cube-transfer", 8301),
    ("serving", 8401),
}

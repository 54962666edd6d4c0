-- One row a pin. `record` is written and read by core/pins.py; `checksum` covers pin_id and record under the pin key.
CREATE TABLE pin (
    pin_id   BLOB NOT NULL PRIMARY KEY,
    record   BLOB NOT NULL,
    checksum BLOB NOT NULL
) STRICT, WITHOUT ROWID;

-- The same ids a second time, in a tree and on pages of their own. A pin whose id was damaged in one of the two cannot
-- be found there any more; that the other still knows it is how "lost" is told from "never stored".
CREATE TABLE witness (
    pin_id BLOB NOT NULL PRIMARY KEY
) STRICT, WITHOUT ROWID;

-- Who retired which pin, when (nanoseconds since the Unix epoch) and why. Only ever added to.
CREATE TABLE audit (
    line   INTEGER PRIMARY KEY,
    pin_id BLOB NOT NULL,
    who    TEXT NOT NULL,
    at     INTEGER NOT NULL,
    why    TEXT NOT NULL
) STRICT;

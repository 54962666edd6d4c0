-- Flows and their hops (§8 of the contract), the first schema. All times are flow time: nanoseconds since the epoch.

-- One row a flow, with the limits that it was started with.
CREATE TABLE flows (
  namespace  TEXT NOT NULL,
  trace_id   TEXT NOT NULL,
  start      INTEGER NOT NULL,
  keep_until INTEGER NOT NULL,
  max_depth  INTEGER NOT NULL,
  max_fan_out INTEGER NOT NULL,
  max_tokens INTEGER NOT NULL,
  timeout    INTEGER NOT NULL,
  refusals   INTEGER NOT NULL,
  PRIMARY KEY (namespace, trace_id)
) STRICT, WITHOUT ROWID;

CREATE INDEX flows_by_end ON flows (keep_until);

-- One row a hop. `position` counts the hops of a flow; `chain` is a JSON list of agents; the columns left_… are what the
-- flow had left when the hop was granted; `finish` and `success` are NULL while it is open.
CREATE TABLE hops (
  namespace  TEXT NOT NULL,
  trace_id   TEXT NOT NULL,
  hop_id     TEXT NOT NULL,
  parent     TEXT NOT NULL,
  caller     TEXT NOT NULL,
  target     TEXT NOT NULL,
  chain      TEXT NOT NULL,
  position   INTEGER NOT NULL,
  start      INTEGER NOT NULL,
  reserve    INTEGER NOT NULL,
  request_id TEXT NOT NULL,
  left_depth INTEGER NOT NULL,
  left_fan_out INTEGER NOT NULL,
  left_tokens INTEGER NOT NULL,
  left_time  INTEGER NOT NULL,
  recorded   INTEGER NOT NULL,
  finish     INTEGER,
  success    INTEGER,
  PRIMARY KEY (namespace, trace_id, hop_id)
) STRICT, WITHOUT ROWID;

-- Records of tokens that had a request id, so that a repeat counts once.
CREATE TABLE records (
  namespace  TEXT NOT NULL,
  trace_id   TEXT NOT NULL,
  request_id TEXT NOT NULL,
  hop_id     TEXT NOT NULL,
  tokens     INTEGER NOT NULL,
  PRIMARY KEY (namespace, trace_id, request_id)
) STRICT, WITHOUT ROWID;

-- The last flow time that this store was seen to work at; the next start never begins before it.
CREATE TABLE seen (
  only INTEGER PRIMARY KEY CHECK (only = 1),
  at   INTEGER NOT NULL
) STRICT;

INSERT INTO seen VALUES (1, 0);

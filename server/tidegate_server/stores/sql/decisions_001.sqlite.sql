-- The decision log (§10 of the contract), the first schema.

-- One row a decision, in the order of writing. `session` is a keyed hash; `detail` is JSON: all that the decision read.
CREATE TABLE decisions (
  sequence    INTEGER PRIMARY KEY AUTOINCREMENT,
  decision_id TEXT NOT NULL UNIQUE,
  decide_time INTEGER NOT NULL,
  namespace   TEXT NOT NULL,
  kind        TEXT NOT NULL,
  subject     TEXT NOT NULL,
  outcome     TEXT NOT NULL,
  reason      TEXT NOT NULL,
  session     TEXT NOT NULL,
  detail      TEXT NOT NULL
) STRICT;

CREATE INDEX decisions_by_namespace ON decisions (namespace, sequence);
CREATE INDEX decisions_by_session ON decisions (namespace, session, sequence) WHERE session <> '';
CREATE INDEX decisions_by_subject ON decisions (namespace, subject, sequence);
CREATE INDEX decisions_by_age ON decisions (decide_time);

-- What the decisions add up to, by UTC day (days since the epoch), kept in the transaction that writes the decisions.
CREATE TABLE totals (
  namespace TEXT NOT NULL,
  day       INTEGER NOT NULL,
  category  TEXT NOT NULL,
  key       TEXT NOT NULL,
  figure    TEXT NOT NULL,
  value     REAL NOT NULL,
  PRIMARY KEY (namespace, day, category, key, figure)
) STRICT, WITHOUT ROWID;

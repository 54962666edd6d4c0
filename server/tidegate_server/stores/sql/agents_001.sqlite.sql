-- Agents, sessions and embeddings (§9 of the contract), the first schema.

-- One row an agent. `document` is the whole entry as JSON; `name` stands apart because dispatch looks for it.
CREATE TABLE agents (
  namespace TEXT NOT NULL,
  agent_id  TEXT NOT NULL,
  name      TEXT NOT NULL,
  document  TEXT NOT NULL,
  PRIMARY KEY (namespace, agent_id)
) STRICT, WITHOUT ROWID;

CREATE INDEX agents_by_name ON agents (namespace, name);

-- The newest turns of each session. `session` is a keyed hash, never the session's id.
CREATE TABLE turns (
  namespace TEXT NOT NULL,
  session   TEXT NOT NULL,
  position  INTEGER NOT NULL,
  at        INTEGER NOT NULL,
  role      TEXT NOT NULL,
  content   TEXT NOT NULL,
  agent_id  TEXT NOT NULL,
  PRIMARY KEY (namespace, session, position)
) STRICT, WITHOUT ROWID;

CREATE INDEX turns_by_age ON turns (namespace, session, at);

-- Embeddings by the space that they live in and the digest of the text: 32-bit floats, little-endian.
CREATE TABLE vectors (
  space  TEXT NOT NULL,
  digest BLOB NOT NULL,
  vector BLOB NOT NULL,
  PRIMARY KEY (space, digest)
) STRICT, WITHOUT ROWID;

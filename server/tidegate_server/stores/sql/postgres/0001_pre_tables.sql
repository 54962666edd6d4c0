-- The first schema (§5, §9 and §10 of the contract). Names start with tidegate_, so that a shared database stays clear.

-- One row a pin. `record` is written and read by core/pins.py; `checksum` covers pin_id and record under the pin key.
-- `losers` counts those who came second: 0 in what an INSERT returns means that the row is the writer's own.
CREATE TABLE tidegate_pin (
    pin_id   bytea   NOT NULL PRIMARY KEY,
    record   bytea   NOT NULL,
    checksum bytea   NOT NULL,
    losers   integer NOT NULL DEFAULT 0
);

-- Who retired which pin, when (nanoseconds since the Unix epoch) and why. Only ever added to. `writer` is the
-- transaction that wrote the line: replicas ask for what was written since they last looked, whatever the order of
-- the commits.
CREATE TABLE tidegate_pin_audit (
    line   bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    pin_id bytea  NOT NULL,
    who    text   NOT NULL,
    at     bigint NOT NULL,
    why    text   NOT NULL,
    writer xid8   NOT NULL DEFAULT pg_current_xact_id()
);

CREATE INDEX tidegate_pin_audit_by_writer ON tidegate_pin_audit (writer);

-- Single values of the whole database: pin_key_check tells the key under which the pins are sealed.
CREATE TABLE tidegate_meta (
    name  text  NOT NULL PRIMARY KEY,
    value bytea NOT NULL
);

-- One row an agent. `document` is the whole entry as JSON text; ids sort byte for byte, like everywhere else.
CREATE TABLE tidegate_agent (
    namespace text COLLATE "C" NOT NULL,
    agent_id  text COLLATE "C" NOT NULL,
    name      text COLLATE "C" NOT NULL,
    document  text NOT NULL,
    PRIMARY KEY (namespace, agent_id)
);

CREATE INDEX tidegate_agent_by_name ON tidegate_agent (namespace, name);

-- One row a session (a keyed hash, never its id): the position of its newest turn, which orders those who append, and
-- when that was.
CREATE TABLE tidegate_session (
    namespace text   COLLATE "C" NOT NULL,
    session   text   COLLATE "C" NOT NULL,
    newest    bigint NOT NULL,
    at        bigint NOT NULL,
    PRIMARY KEY (namespace, session)
);

CREATE INDEX tidegate_session_by_age ON tidegate_session (at);

-- `document` is the turn as JSON text, which holds every character; a text column refuses NUL.
CREATE TABLE tidegate_turn (
    namespace text   COLLATE "C" NOT NULL,
    session   text   COLLATE "C" NOT NULL,
    position  bigint NOT NULL,
    document  text   NOT NULL,
    PRIMARY KEY (namespace, session, position),
    FOREIGN KEY (namespace, session) REFERENCES tidegate_session ON DELETE CASCADE
);

-- Embeddings by the space that they live in and the digest of the text: 32-bit floats, little-endian.
CREATE TABLE tidegate_vector (
    space  text  COLLATE "C" NOT NULL,
    digest bytea NOT NULL,
    vector bytea NOT NULL,
    PRIMARY KEY (space, digest)
);

-- One row a decision, in the order of writing. `session` is a keyed hash; `detail` is JSON text: all that it read.
CREATE TABLE tidegate_decision (
    sequence    bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    decision_id text   NOT NULL UNIQUE,
    decide_time bigint NOT NULL,
    kind        text   NOT NULL,
    subject     text   NOT NULL,
    outcome     text   NOT NULL,
    reason      text   NOT NULL,
    session     text   NOT NULL,
    namespace   text   NOT NULL,
    detail      text   NOT NULL
);

CREATE INDEX tidegate_decision_by_namespace ON tidegate_decision (namespace, sequence);
CREATE INDEX tidegate_decision_by_session ON tidegate_decision (namespace, session, sequence) WHERE session <> '';
CREATE INDEX tidegate_decision_by_subject ON tidegate_decision (namespace, subject, sequence);
CREATE INDEX tidegate_decision_by_age ON tidegate_decision (decide_time);

-- What the decisions add up to, by UTC day (days since the epoch), kept in the transaction that writes the decisions.
CREATE TABLE tidegate_total (
    namespace text   COLLATE "C" NOT NULL,
    day       bigint NOT NULL,
    category  text   COLLATE "C" NOT NULL,
    key       text   COLLATE "C" NOT NULL,
    figure    text   COLLATE "C" NOT NULL,
    value     double precision NOT NULL,
    PRIMARY KEY (namespace, day, category, key, figure)
);

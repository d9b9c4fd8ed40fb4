-- Revisions of keys and positions in streams: one counter, so that none comes twice whatever is deleted.
CREATE SEQUENCE {schema}.positions;

-- Names are compared byte by byte, whatever the locale of the database.
CREATE TABLE {schema}.entries (
	key     text COLLATE "C" PRIMARY KEY,
	rev     bigint NOT NULL,
	expires timestamptz,
	value   bytea NOT NULL
) WITH (autovacuum_vacuum_scale_factor = 0.02);

CREATE INDEX entries_expires ON {schema}.entries (expires) WHERE expires IS NOT NULL;

CREATE TABLE {schema}.records (
	stream  text COLLATE "C" NOT NULL,
	seq     bigint NOT NULL,
	id      text COLLATE "C" NOT NULL,
	time    timestamptz NOT NULL,
	expires timestamptz,
	value   bytea NOT NULL,
	PRIMARY KEY (stream, seq)
) WITH (autovacuum_vacuum_scale_factor = 0.02);

CREATE INDEX records_expires ON {schema}.records (expires) WHERE expires IS NOT NULL;

-- An id outlives its record if that is acknowledged before it expires.
CREATE TABLE {schema}.ids (
	stream  text COLLATE "C" NOT NULL,
	id      text COLLATE "C" NOT NULL,
	seq     bigint NOT NULL,
	expires timestamptz,
	PRIMARY KEY (stream, id)
) WITH (autovacuum_vacuum_scale_factor = 0.02);

CREATE INDEX ids_expires ON {schema}.ids (expires) WHERE expires IS NOT NULL;

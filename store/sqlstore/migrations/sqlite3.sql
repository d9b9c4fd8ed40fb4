-- last: of the revisions of keys and the positions in streams; one counter, so that none comes twice whatever is deleted.
-- swept: when expired rows were removed last. Times are microseconds since 1970, and those of expiry null for never.
-- marked: 1 if the file of the high-water mark exists. sum: the checksum of the row, see sum.go.
CREATE TABLE state (
	last   INTEGER NOT NULL,
	swept  INTEGER NOT NULL,
	marked INTEGER NOT NULL,
	sum    INTEGER NOT NULL
);

-- Values stand last, so that the other columns are read without walking through their pages.
CREATE TABLE entries (
	key     TEXT NOT NULL UNIQUE,
	rev     INTEGER NOT NULL,
	expires INTEGER,
	sum     INTEGER NOT NULL,
	value   BLOB NOT NULL
);

CREATE INDEX entries_expires ON entries (expires) WHERE expires IS NOT NULL;

CREATE TABLE records (
	seq     INTEGER PRIMARY KEY,
	stream  TEXT NOT NULL,
	id      TEXT NOT NULL,
	time    INTEGER NOT NULL,
	expires INTEGER,
	sum     INTEGER NOT NULL,
	value   BLOB NOT NULL
);

CREATE INDEX records_stream ON records (stream, seq);

CREATE INDEX records_expires ON records (expires) WHERE expires IS NOT NULL;

-- An id outlives its record if that is acknowledged before it expires.
CREATE TABLE ids (
	stream  TEXT NOT NULL,
	id      TEXT NOT NULL,
	seq     INTEGER NOT NULL,
	expires INTEGER,
	sum     INTEGER NOT NULL,
	PRIMARY KEY (stream, id)
) WITHOUT ROWID;

CREATE INDEX ids_expires ON ids (expires) WHERE expires IS NOT NULL;

-- Columns with new names make processes of earlier versions fail at once: they would store rows without a checksum.
ALTER TABLE {schema}.entries RENAME COLUMN value TO content;
ALTER TABLE {schema}.records RENAME COLUMN value TO content;
ALTER TABLE {schema}.ids RENAME COLUMN seq TO position;

-- life: the expiry once more, in microseconds since 1970, or -1. sum: the checksum of the row, see postgressum.go.
ALTER TABLE {schema}.entries ADD COLUMN life bigint, ADD COLUMN sum bigint;
ALTER TABLE {schema}.records ADD COLUMN life bigint, ADD COLUMN sum bigint;
ALTER TABLE {schema}.ids ADD COLUMN life bigint, ADD COLUMN sum bigint;

CREATE INDEX entries_unsummed ON {schema}.entries (sum) WHERE sum IS NULL;
CREATE INDEX records_unsummed ON {schema}.records (sum) WHERE sum IS NULL;
CREATE INDEX ids_unsummed ON {schema}.ids (sum) WHERE sum IS NULL;

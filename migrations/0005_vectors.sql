-- Embedding models that vectors were made with, by their id.
create table embedding_models (
  seq integer primary key autoincrement,
  id text not null unique,
  dimensions integer not null
) strict;

-- A visible fragment's vector: one signed byte a dimension. Another model's is replaced.
create table fragment_vectors (
  fragment_seq integer primary key references fragments (seq) on delete cascade,
  model_seq integer not null references embedding_models (seq),
  vector blob not null
) strict;

-- Which corpora have a vector index, vectors_<corpus_seq>, and of which model. The indexes are virtual tables of an
-- extension: a row outlives its corpus until a start that has the extension drops the index.
create table vector_indexes (
  corpus_seq integer primary key,
  model_seq integer not null references embedding_models (seq)
) strict;

-- A start looks up the texts of the spans that lie in files.
create index fragments_by_span on fragments (prepared_span_key) where prepared_span_key is not null;

-- A worker that is ready is told of the objects of its model and format, those used last first.
create index kv_objects_by_model on kv_objects (model_digest, format, used_at);
-- A start reads ahead the texts of the spans that were used last.
create index kv_objects_first_by_use on kv_objects (used_at) where position = 0;

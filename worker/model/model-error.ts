/** A model folder that cannot be served: the message names the file and the field, for the operator. */
export class ModelError extends Error {
  override readonly name = "ModelError";
}

/** Throws a ModelError that names the field. */
export type Refuse = (field: string, value: unknown) => never;

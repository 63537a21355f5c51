/** The validator that grammars of JSON schemas are compared with: ajv, with an equality of JSON values of our own. */
import { Ajv, type ValidateFunction } from "ajv";

/** Ajv's own calls `toString` and `valueOf` of what it compares, which are fields like others in JSON, and throws. */
function isSameJson(one: unknown, other: unknown): boolean {
  if (typeof one !== "object" || typeof other !== "object" || one === null || other === null) return one === other;
  if (Array.isArray(one) !== Array.isArray(other)) return false;
  const [fields, others] = [Object.entries(one), new Map<string, unknown>(Object.entries(other))];
  return (
    fields.length === others.size &&
    fields.every(([name, value]) => others.has(name) && isSameJson(value, others.get(name)))
  );
}

export function validatorOf(schema: object): ValidateFunction {
  const ajv = new Ajv({ strict: false, logger: false });
  ajv.removeKeyword("const").removeKeyword("enum");
  ajv.addKeyword({ keyword: "const", validate: (expected: unknown, value: unknown) => isSameJson(expected, value) });
  const isOneOf = (options: readonly unknown[], value: unknown) => options.some((option) => isSameJson(option, value));
  ajv.addKeyword({ keyword: "enum", schemaType: "array", validate: isOneOf });
  return ajv.compile(schema);
}

/** Whether a text of JSON is a value that the schema takes. */
export const validates = (schema: object, text: string): boolean => validatorOf(schema)(JSON.parse(text));

/** Bounds on what callers say of answers and of tools. */
const mib = 2 ** 20;

/** The schema that an answer has to fit, as JSON, and what is made of it. */
export const answerLimits = {
  schemaChars: 262_144,
  schemaValues: 32_768,
  /** What a thread may take for one grammar: a bound on mistakes of ours, many times what its budget allows. */
  compileMs: 5_000,
  /** Grammars that are kept. */
  keptBytes: 32 * mib,
} as const;

export const toolLimits = {
  tools: 128,
  descriptionChars: 16_384,
  /** Of one tool's schema, and of all that is said of all tools, as JSON. */
  schemaChars: 65_536,
  toolsChars: 524_288,
  /** In the schemas and the arguments of a prompt: each may cost its template a step. */
  promptValues: 16_384,
  callsPerMessage: 128,
  callIdChars: 128,
  /** Of one call, as JSON. */
  argumentsChars: 1_048_576,
  argumentsDepth: 32,
  argumentsCommas: 16_384,
} as const;

/** Bounds on what requests may say about answers and tools. */
const mib = 2 ** 20;

/** Bounds on the JSON schema of an answer, and on what is made of it. */
export const answerLimits = {
  schemaChars: 262_144,
  schemaValues: 32_768,
  /** Longest time for one grammar in a thread. The budget ends any grammar far sooner; this only catches mistakes. */
  compileMs: 5_000,
  /** Memory for compiled grammars. */
  keptBytes: 32 * mib,
} as const;

export const toolLimits = {
  tools: 128,
  descriptionChars: 16_384,
  /** Size of one tool's schema as JSON, and of everything about all tools together. */
  schemaChars: 65_536,
  toolsChars: 524_288,
  /** Values in the schemas and arguments of a prompt, since the template may take a step for each. */
  promptValues: 16_384,
  callsPerMessage: 128,
  callIdChars: 128,
  /** Bounds on the arguments of one call, as JSON. */
  argumentsChars: 1_048_576,
  argumentsDepth: 32,
  argumentsCommas: 16_384,
} as const;

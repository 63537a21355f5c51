/** Bounds on what callers say of tools. */
export const toolLimits = {
  tools: 128,
  descriptionChars: 16_384,
  /** Of one tool's schema, and of all that is said of all tools, as JSON. */
  schemaChars: 65_536,
  toolsChars: 524_288,
  callsPerMessage: 128,
  callIdChars: 128,
  /** Of one call, as JSON. */
  argumentsChars: 1_048_576,
  argumentsDepth: 32,
  argumentsCommas: 100_000,
} as const;

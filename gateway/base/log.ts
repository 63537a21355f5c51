/** Log lines: one JSON object a line on stderr. They never hold tenant text, credentials or salts. */
export const logLevels = ["debug", "info", "warn", "error", "silent"] as const;
export type LogLevel = (typeof logLevels)[number];
export type LogFields = Readonly<Record<string, string | number | boolean | undefined>>;

export type Log = (level: Exclude<LogLevel, "silent">, message: string, fields?: LogFields) => void;

/** Where an error was thrown: the innermost frames, without its message, which may hold a tenant's text and line breaks. */
export function placeOf(error: unknown): string | undefined {
  if (!(error instanceof Error) || error.stack === undefined) return undefined;
  const frames = error.stack.replace(error.message, () => "").split("\n");
  const isFrame = (line: string): boolean => /^ {4}at .+:\d+:\d+\)?$/.test(line);
  return frames
    .filter(isFrame)
    .slice(0, 3)
    .map((line) => line.trim())
    .join(" | ");
}

/** A log that drops lines below `minimum`. */
export function createLog(
  minimum: LogLevel,
  write: (line: string) => void = (line) => void process.stderr.write(line),
): Log {
  const threshold = logLevels.indexOf(minimum);
  return (level, message, fields) => {
    if (logLevels.indexOf(level) < threshold) return;
    write(`${JSON.stringify({ time: new Date().toISOString(), level, message, ...fields })}\n`);
  };
}

/**
 * A plan as it goes through the pipe. What goes through is walked and copied object by object, which took 0.2 ms for a
 * prompt of 32 spans at either end: so all numbers of all runs lie in one array, and all their keys in another.
 */
import type { GatewayMessage, PlanRun, SegmentRef, SubmitMessage, TokenPlan } from "./messages.ts";
import { type BlockKey, blockKeyChars } from "./units.ts";

export interface PipedPlan {
  /**
   * For each run, one behind the other: 1 for a span or 0, its position, how many tokens, block keys and segments it has;
   * then four numbers for each segment (run, firstToken, tokenCount, offset), and its tokens.
   */
  readonly numbers: Int32Array;
  /** For each run its root key and then its block keys, as ASCII. */
  readonly keys: Uint8Array;
  readonly spanIds: readonly (string | undefined)[];
  /** What few runs have. */
  readonly rare: readonly (Pick<PlanRun, "quotes" | "blend"> & { readonly run: number })[];
}

/** `SubmitMessage` as it goes through the pipe. */
export type PipedSubmit = Omit<SubmitMessage, "plan"> & { readonly plan: PipedPlan };

/** A message to the worker as it goes through the pipe. */
export type PipedMessage = Exclude<GatewayMessage, SubmitMessage> | PipedSubmit;

export const piped = (message: GatewayMessage): PipedMessage =>
  message.type === "submit" ? { ...message, plan: pipedPlan(message.plan) } : message;

const [runNumbers, segmentNumbers] = [5, 4];
const ascii = new TextEncoder();

function pipedPlan({ runs }: TokenPlan): PipedPlan {
  const length = runs.reduce(
    (sum, { tokenIds, sees }) => sum + runNumbers + segmentNumbers * sees.length + tokenIds.length,
    0,
  );
  const numbers = new Int32Array(length);
  const keys: string[] = [];
  let at = 0;
  for (const { kind, position, tokenIds, blockKeys, rootKey, sees } of runs) {
    numbers[at++] = kind === "span" ? 1 : 0;
    numbers[at++] = position;
    numbers[at++] = tokenIds.length;
    numbers[at++] = blockKeys.length;
    numbers[at++] = sees.length;
    for (const { run, firstToken, tokenCount, offset } of sees) {
      numbers[at++] = run;
      numbers[at++] = firstToken;
      numbers[at++] = tokenCount;
      numbers[at++] = offset;
    }
    numbers.set(tokenIds, at);
    at += tokenIds.length;
    keys.push(rootKey, ...blockKeys);
  }
  const rare = runs.flatMap(({ quotes, blend }, run) =>
    quotes === undefined && blend === undefined
      ? []
      : [{ run, ...(quotes !== undefined && { quotes }), ...(blend !== undefined && { blend }) }],
  );
  return { numbers, keys: ascii.encode(keys.join("")), spanIds: runs.map(({ spanId }) => spanId), rare };
}

/** The plan that was sent; undefined: its numbers do not fit together. What they mean is checked by `planFault`. */
export function planOfPiped({ numbers, keys, spanIds, rare }: PipedPlan): TokenPlan | undefined {
  if (!(numbers instanceof Int32Array && keys instanceof Uint8Array)) return undefined;
  const keyText = Buffer.from(keys.buffer, keys.byteOffset, keys.byteLength);
  const runs: PlanRun[] = [];
  let at = 0;
  let keyAt = 0;
  // Each key is copied: a part of one long text would keep all of it in memory for as long as its block is known.
  const nextKey = (): BlockKey => {
    const key = keyText.toString("latin1", keyAt, keyAt + blockKeyChars);
    keyAt += blockKeyChars;
    return key as BlockKey;
  };
  // Behind the end: a count that fits nowhere.
  const numberAt = (index: number): number => numbers[index] ?? -1;
  while (at < numbers.length) {
    const isSpan = numberAt(at) === 1;
    const position = numberAt(at + 1);
    const tokens = numberAt(at + 2);
    const blocks = numberAt(at + 3);
    const segments = numberAt(at + 4);
    const tokensAt = at + runNumbers + segmentNumbers * segments;
    const end = tokensAt + tokens;
    const fits = tokens >= 0 && blocks >= 0 && segments >= 0 && end <= numbers.length;
    if (!fits || keyAt + (1 + blocks) * blockKeyChars > keys.length) return undefined;
    const sees: SegmentRef[] = [];
    for (let from = at + runNumbers; from < tokensAt; from += segmentNumbers) {
      const [run, firstToken] = [numberAt(from), numberAt(from + 1)];
      sees.push({ run, firstToken, tokenCount: numberAt(from + 2), offset: numberAt(from + 3) });
    }
    const rootKey = nextKey();
    const blockKeys = Array.from({ length: blocks }, nextKey);
    const spanId = spanIds[runs.length];
    const run = { position, tokenIds: numbers.slice(tokensAt, end), sees, blockKeys, rootKey };
    runs.push({ kind: isSpan ? "span" : "main", ...run, ...(spanId !== undefined && { spanId }) });
    at = end;
  }
  if (keyAt !== keys.length) return undefined;
  for (const { run, ...parts } of rare) {
    const of = runs[run];
    if (of === undefined) return undefined;
    runs[run] = { ...of, ...parts };
  }
  return { runs };
}

/**
 * Compiles the grammars of answers, each once, and keeps them for a while. Small ones are compiled at once, all others
 * in a thread. Tenants share nothing, since the time of an answer would show what another tenant asks for.
 */
import type { ByteGrammar } from "../../worker/contract/grammar.ts";
import { ApiError } from "../base/errors.ts";
import { onAbort } from "../base/hold.ts";
import { TenantLru } from "../base/tenant-lru.ts";
import type { GrammarBounds } from "../grammar/budget.ts";
import { TaskTimeout } from "../threads/pool.ts";
import { type AnswerGrammar, answerGrammar } from "./answer-grammar.ts";
import type { AnswerRules } from "./answer-rules.ts";
import { answerLimits } from "./limits.ts";
import type { Threads } from "./open-threads.ts";

/** Bounds for compiling on the event loop: a millisecond or two. They allow no patterns, and so no formats. */
export const smallGrammar: GrammarBounds = { rules: 1_024, symbols: 4_096, patternChars: 0, looks: 4_096 };
const smallChars = 4_096;
const mayBeSmall = (text: string): boolean => text.length <= smallChars && !/"(?:pattern|format)":"/.test(text);

/** Compiles AnswerRules, given as JSON, in a thread. @throws TaskTimeout, ApiError */
export type CompileElsewhere = (tenantId: string, rules: string, signal: AbortSignal) => Promise<AnswerGrammar>;

export const compileIn =
  (threads: Threads): CompileElsewhere =>
  (tenantId, rules, signal) =>
    threads.run("answerGrammar", rules, { tenantId, maxMs: answerLimits.compileMs, signal });

/** A grammar that is being compiled. It is given up when no request waits for it any more. */
interface Pending {
  readonly made: Promise<ByteGrammar>;
  readonly ender: AbortController;
  waiting: number;
}

export class Grammars {
  readonly #compileElsewhere: CompileElsewhere;
  readonly #kept: TenantLru<ByteGrammar>;
  /** By grammar id. Requests for the same grammar wait for the same compilation. */
  readonly #pending = new Map<string, Pending>();

  constructor(compileElsewhere: CompileElsewhere, keptBytes: number = answerLimits.keptBytes) {
    this.#compileElsewhere = compileElsewhere;
    this.#kept = new TenantLru({ maxSize: keptBytes });
  }

  /**
   * @returns the grammar, with an id that is a digest of the tenant and the rules
   * @throws ApiError invalid_value with the path of what no grammar can express; overloaded, concurrency_limited; the
   *   signal's reason when it aborts
   */
  async of(tenantId: string, rules: AnswerRules, signal: AbortSignal): Promise<ByteGrammar> {
    signal.throwIfAborted();
    const text = JSON.stringify(rules);
    const id = new Bun.CryptoHasher("sha256").update(`${tenantId}\n${text}`).digest("base64url");
    const known = this.#kept.get(tenantId, id);
    if (known !== undefined) return known;
    const pending = this.#pending.get(id) ?? this.#begin(tenantId, rules, text, id);
    pending.waiting += 1;
    const leave = (): void => {
      pending.waiting -= 1;
      if (pending.waiting > 0) return;
      // A request that comes from now on starts a new compilation.
      this.#pending.delete(id);
      pending.ender.abort(signal.reason);
    };
    using _listener = onAbort(signal, leave);
    return await pending.made;
  }

  #begin(tenantId: string, rules: AnswerRules, text: string, id: string): Pending {
    const ender = new AbortController();
    const make = async (): Promise<ByteGrammar> => {
      try {
        const grammar = { ...(await this.#make(tenantId, rules, text, ender.signal)), id };
        this.#kept.set(tenantId, id, grammar, bytesOf(grammar));
        return grammar;
      } finally {
        if (this.#pending.get(id) === pending) this.#pending.delete(id);
      }
    };
    const pending: Pending = { made: Promise.resolve().then(make), ender, waiting: 0 };
    this.#pending.set(id, pending);
    return pending;
  }

  async #make(tenantId: string, rules: AnswerRules, text: string, signal: AbortSignal): Promise<ByteGrammar> {
    if (mayBeSmall(text)) {
      const answer = answerGrammar(rules, smallGrammar);
      if (!("refusal" in answer && answer.isTooLarge)) return grammarOf(answer);
    }
    try {
      return grammarOf(await this.#compileElsewhere(tenantId, text, signal));
    } catch (error) {
      throw error instanceof TaskTimeout ? new ApiError("overloaded", { cause: error }) : error;
    }
  }
}

function grammarOf(answer: AnswerGrammar): ByteGrammar {
  if ("refusal" in answer) throw new ApiError("invalid_value", answer.refusal);
  return answer.grammar;
}

const objectBytes = 256;

/** Approximate memory of a grammar in bytes. */
const bytesOf = ({ symbols }: ByteGrammar): number => objectBytes + symbols.byteLength;

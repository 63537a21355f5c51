/**
 * What a start does before it says that it is ready, so that the first question after a restart takes hardly longer
 * than the next ones: the texts of fragments whose KV lies in files are encoded and keyed, those used last first, and
 * the words that find them are looked up once. Meanwhile the worker loads their KV. Requests that come earlier are
 * served; nothing waits for this but `/ready`, and that only for a while.
 */

import { findKeptFragments, type KeptFragment, listKvSpans } from "../../db/kv-objects.ts";
import type { Db } from "../../db/open.ts";
import { chunks } from "../base/chunks.ts";
import { messageOf } from "../base/errors.ts";
import type { Log } from "../base/log.ts";
import { Pace, yieldToRequests } from "../base/pace.ts";
import { streamSafe } from "../base/stream-safe.ts";
import { limits } from "../config.ts";
import type { CorpusSaltOf } from "../corpus/base/ports.ts";
import type { Searches } from "../corpus/search/searches.ts";
import type { KvObjects } from "../kv/objects.ts";
import { openRehearsal, type SaltedFragment } from "./rehearsal.ts";
import type { TextSide } from "./text.ts";
import type { Workers } from "./workers.ts";

/** Fragments at most, and how many are read from the database at once. */
const [mostFragments, fragmentsAtOnce] = [1_024, 32];
/** Fragments that are searched for in their corpora, by so many of their characters. */
const [mostSearches, questionChars] = [8, 100];
/** Corpora that are asked, fragments of a rehearsed prompt, and how often each is rehearsed. */
const [rehearsedCorpora, rehearsedFragments, rounds] = [4, 32, 4];
/** What a search answers at most. */
const hits = 50;

export interface WarmStartOptions {
  readonly db: Db;
  readonly searches: Pick<Searches, "rank">;
  readonly corpusSalt: CorpusSaltOf;
  readonly text: Pick<TextSide, "encodeAhead" | "lowererFor" | "tokenBytes">;
  readonly workers: Pick<Workers, "supervisor" | "registry" | "residency" | "dispatcher">;
  readonly kv: Pick<KvObjects, "loaded">;
  readonly log: Log;
  readonly state: { warming: boolean };
}

/** Resolves when all is warm, or has taken long enough. @throws what `firstReady` rejects with */
export async function warmStart(options: WarmStartOptions): Promise<void> {
  const { workers, kv, log, state } = options;
  const work = new WarmStart(options);
  const encoded = work.encode();
  // The first requests do what could not be done ahead.
  encoded.catch((error: unknown) => {
    const reason = messageOf(error);
    log("warn", "texts of kept KV could not be read ahead", { reason });
  });
  try {
    await workers.supervisor.firstReady();
    const keyed = encoded.then(
      () => work.key(),
      () => undefined,
    );
    const rehearsed = Promise.all([kv.loaded.promise, keyed])
      .then(() => work.rehearse())
      .catch(() => undefined);
    await Promise.race([rehearsed, Bun.sleep(limits.warmUpMs)]);
  } finally {
    work.stop();
    state.warming = false;
  }
}

class WarmStart {
  readonly #options: WarmStartOptions;
  readonly #fragments: SaltedFragment[] = [];
  readonly #pace = new Pace(yieldToRequests);
  /** Before any text is read: what is deleted from here on is not brought back. */
  readonly #readAtMs = performance.now();
  #searches = 0;
  #isOver = false;

  constructor(options: WarmStartOptions) {
    this.#options = options;
  }

  stop(): void {
    this.#isOver = true;
  }

  async encode(): Promise<void> {
    const { db } = this.#options;
    for (const keys of chunks(listKvSpans(db, mostFragments), fragmentsAtOnce)) {
      for (const fragment of findKeptFragments(db, keys)) {
        if (this.#isOver) return;
        await this.#encode(fragment);
        // One tenant's search that fails or takes long says nothing of the others' texts.
        await this.#search(fragment).catch(() => undefined);
        await this.#pace.breathe();
      }
    }
  }

  async key(): Promise<void> {
    const { text, workers } = this.#options;
    const card = workers.registry.card();
    if (card === undefined) return;
    const lowerer = text.lowererFor(card);
    for (const fragment of this.#fragments) {
      if (this.#isOver) return;
      lowerer.lowerSpan(fragment);
      await this.#pace.breathe();
    }
  }

  /**
   * Asks over fragments that a worker holds, as the first question will, each corpus for itself: prompts over fragments
   * of another size are other work. Nobody reads the answers.
   */
  async rehearse(): Promise<void> {
    const { text, workers } = this.#options;
    const card = workers.registry.card();
    if (card === undefined) return;
    const lowerer = text.lowererFor(card);
    const held = this.#fragments.filter((fragment) => {
      const key = lowerer.lowerSpan(fragment).blockKeys.at(-1);
      return key !== undefined && workers.residency.holders(key).length > 0;
    });
    const corpora = [...Map.groupBy(held, ({ corpusId }) => corpusId).values()].slice(0, rehearsedCorpora);
    const ask = openRehearsal({ text, workers, readAtMs: this.#readAtMs });
    for (let round = 0; round < rounds; round++) {
      for (const [first, ...others] of corpora) {
        if (this.#isOver || first === undefined) return;
        await ask(`${round}`, [first, ...others.slice(0, rehearsedFragments - 1)]);
      }
    }
  }

  async #encode(fragment: KeptFragment): Promise<void> {
    const { corpusId, saltEpoch, tenantId } = fragment;
    const salted = { ...fragment, salt: this.#options.corpusSalt(corpusId, saltEpoch, tenantId) };
    await this.#options.text.encodeAhead(salted);
    this.#fragments.push(salted);
  }

  /** Starts a thread that searches, and has it read the pages of the index that questions read. */
  async #search({ corpusId, corpusSeq, tenantId, text }: KeptFragment): Promise<void> {
    this.#searches += 1;
    if (this.#searches > mostSearches) return;
    const query = streamSafe(text.slice(0, questionChars));
    const corpora = [{ seq: corpusSeq, id: corpusId }];
    const search = { corpora, query, byWords: true, vector: undefined, filters: undefined, limit: hits };
    await this.#options.searches.rank(tenantId, search);
  }
}

/**
 * Does the retrieval of a query before anything is rewritten: `retrieve` and `augment` become the texts found, and
 * fragments that are named by id get their text. Only this file reads stored data; the rules that follow are pure.
 */
import { ApiError } from "../base/errors.ts";
import { yieldToOthers } from "../base/pace.ts";
import type { Awaitable, NamedFragment, RetrieveRequest } from "../corpus/search/retrieve.ts";
import type { PromptDocument } from "../generate/plan-documents.ts";
import type { LowerDocument } from "../lower/plan.ts";
import { type Augment, childrenOf, type Generate, type Query, type Repeat, type Retrieve } from "../query/ir.ts";
import { queryLimits } from "../query/limits.ts";
import { mapChildren } from "../query/transform.ts";
import { type AugmentOptions, augmentMessages } from "./augment.ts";
import { atPath } from "./located.ts";
import { type Inner, innerAt } from "./prompt-parts.ts";
import { Slots } from "./slots.ts";
import type { SourceOf } from "./sources.ts";

export type FoundFragment = NamedFragment;

export type Search = Pick<RetrieveRequest, "vectorStoreIds" | "query" | "maxResults"> & { readonly filters?: unknown };

/** The data that one tenant may read. Both functions throw ApiError; other tenants' data counts as unknown. */
export interface Sources {
  readonly retrieve: (search: Search) => Awaitable<readonly FoundFragment[]>;
  /** Fragments in the order of the ids; undefined for unknown ones. */
  readonly fragments: (ids: readonly string[]) => readonly (FoundFragment | undefined)[];
  readonly augment: AugmentOptions;
  /** Most characters of a document that is searched. */
  readonly maxAugmentChars: number;
  /** Texts of a generate whose output is searched for. @throws ApiError where nothing may run */
  readonly generated: (inner: Inner) => Promise<readonly string[]>;
}

export class Resolver {
  /** The fragments by id. Generates inside this query's searches may hold any of them. */
  readonly fragments = new Map<string, LowerDocument>();
  readonly #found = new Map<string, FoundFragment>();
  /** The nodes whose text came with the query as a document, or as the part of one that was found in it. */
  readonly #documents = new Map<Query, PromptDocument>();
  readonly #sources: Sources;
  readonly #signal: AbortSignal;
  /** Each search keeps the event loop busy for a while, so a query runs only one at a time. */
  readonly #searches = new Slots(1);
  readonly #resolved = new Map<Query, Promise<Query>>();

  /** @param signal no search begins after it aborts */
  constructor(sources: Sources, signal: AbortSignal) {
    this.#sources = sources;
    this.#signal = signal;
  }

  /** The fragments of corpora that were read. */
  get found(): readonly FoundFragment[] {
    return [...this.#found.values()];
  }

  /** See `SourceOf`. */
  sourceOf(query: Query): ReturnType<SourceOf> {
    if (query.kind === "fragment" && "id" in query) return this.#found.get(query.id);
    return this.#documents.get(query);
  }

  /** @throws ApiError naming the node by its path */
  async resolve(root: Query): Promise<Query> {
    this.#readNamed(root);
    return await this.#resolve(root, "$");
  }

  /** Resolves a node once, so that shared nodes stay shared. */
  #resolve(query: Query, path: string): Promise<Query> {
    return this.#resolved.getOrInsertComputed(query, () => this.#resolveNode(query, path));
  }

  /** A query may hold ten thousand messages and texts, where nothing is resolved: a promise for each took 20 ms at once. */
  async #resolveNode(query: Query, path: string): Promise<Query> {
    this.#noteDocument(query, path);
    const resolved = new Map<Query, Promise<Query>>();
    for (const [step, child] of childrenOf(query)) {
      if (isLeaf(child)) this.#noteDocument(child, path + step);
      else if (!resolved.has(child)) resolved.set(child, this.#resolve(child, path + step));
    }
    const inner = new Map(
      await Promise.all(Array.from(resolved, async ([child, whole]) => [child, await whole] as const)),
    );
    const whole = mapChildren(query, (child) => inner.get(child) ?? child);
    if (whole.kind === "retrieve") return await this.#retrieve(whole, path);
    if (whole.kind === "augment") return await this.#augment(whole, path);
    return whole;
  }

  /** A text that the query names first at this path is a document of that path. */
  #noteDocument(query: Query, path: string): void {
    if (query.kind !== "fragment" || !("text" in query) || this.#documents.has(query)) return;
    this.#documents.set(query, { id: path, text: query.text, title: query.title });
  }

  async #retrieve(node: Retrieve, path: string): Promise<Query> {
    const { vectorStoreIds, maxResults, filters } = node;
    const asked =
      typeof node.query === "string" ? node.query : await this.#textOf(node.query, `${path}.retrieve.query`);
    const query = searchText(asked, `${path}.retrieve.query`);
    return await this.#search(async () => {
      try {
        const found = await this.#sources.retrieve({ vectorStoreIds, query, maxResults, filters });
        for (const fragment of found) this.#add(fragment);
        return { kind: "retrieved", fragments: found.map(({ id }) => ({ kind: "fragment", id })) };
      } catch (error) {
        throw named(error, path);
      }
    });
  }

  async #augment(node: Augment, path: string): Promise<Query> {
    const { body, doc } = node;
    const { augment, maxAugmentChars } = this.#sources;
    if (doc.text.length > maxAugmentChars) {
      const param = `${path}.augment.doc[1]`;
      const message = `${param}: a document may have at most ${maxAugmentChars} characters.`;
      throw new ApiError("invalid_value", { message, param });
    }
    const question = searchText(await this.#textOf(body, `${path}.augment.body`), `${path}.augment.body`);
    return await this.#search(async () => {
      const parts = await augmentMessages(node, question, augment, this.#signal);
      for (const { message, ...range } of parts) {
        this.#documents.set(message, { id: path, title: doc.name, text: doc.text, ...range });
      }
      return { kind: "retrieved", fragments: parts.map(({ message }) => message) };
    });
  }

  /** @throws the signal's reason */
  async #search(work: () => Promise<Query>): Promise<Query> {
    using _hold = await this.#searches.enter(this.#signal);
    await yieldToOthers();
    return await work();
  }

  /** The text to search for: a query's messages, fragments and generated outputs together. */
  async #textOf(query: Query, path: string): Promise<string> {
    if (query.kind === "message") return query.text;
    if (query.kind === "fragment") return "text" in query ? query.text : (this.fragments.get(query.id)?.text ?? "");
    if (query.kind === "monad") return "";
    if (query.kind === "map") return query.inputs.join("\n");
    if (query.kind === "generate" || query.kind === "repeat") return await this.#generated(query, path);
    const steps = childrenOf(query);
    const texts = await Promise.all(steps.map(([step, child]) => this.#textOf(child, path + step)));
    return texts.filter((text) => text !== "").join("\n");
  }

  async #generated(node: Generate | Repeat, path: string): Promise<string> {
    return (await this.#sources.generated(innerAt(node, path))).join("\n");
  }

  /** Reads the texts of all fragments that are named by id, in one request. */
  #readNamed(root: Query): void {
    const paths = fragmentPaths(root);
    const ids = [...paths.keys()];
    if (ids.length === 0) return;
    for (const [index, fragment] of this.#sources.fragments(ids).entries()) {
      if (fragment !== undefined) {
        this.#add(fragment);
        continue;
      }
      const param = `${paths.get(ids[index] ?? "") ?? "$"}.fragment.id`;
      throw new ApiError("not_found", { message: `${param}: no such fragment.`, param });
    }
  }

  #add(fragment: FoundFragment): void {
    const { id, text, salt } = fragment;
    this.#found.set(id, fragment);
    this.fragments.set(id, { id, text, salt });
  }
}

const isLeaf = ({ kind }: Query): boolean => kind === "message" || kind === "fragment" || kind === "map";

/** The first path at which each fragment's id stands. */
function fragmentPaths(root: Query): ReadonlyMap<string, string> {
  const paths = new Map<string, string>();
  const seen = new Set<Query>();
  const visit = (query: Query, path: string): void => {
    if (seen.has(query)) return;
    seen.add(query);
    if (query.kind === "fragment" && "id" in query && !paths.has(query.id)) paths.set(query.id, path);
    for (const [step, child] of childrenOf(query)) visit(child, path + step);
  };
  visit(root, "$");
  return paths;
}

/** The joined text may be longer than a single text may be, so only its beginning is searched for. */
function searchText(text: string, param: string): string {
  const trimmed = text.slice(0, queryLimits.searchChars).trim();
  if (trimmed !== "") return trimmed;
  throw new ApiError("invalid_value", { message: `${param}: there is no text to search for.`, param });
}

/** Corpus errors name their own argument; this names the node's field instead. */
function named(error: unknown, path: string): unknown {
  if (!(error instanceof ApiError) || error.param === undefined) return atPath(error, path);
  const param = `${path}.retrieve.${error.param}`;
  return new ApiError(error.code, { message: `${param}: ${error.message}`, param, cause: error.cause });
}

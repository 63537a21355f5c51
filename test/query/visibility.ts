/**
 * Who may see what in a span query, written from the meaning of the nodes (ir.ts) and without the rewriter: the oracle
 * that its rules are held to. For every run it lists what stands in its prompt and which text sees which.
 */
import type { Fragment, Generate, MapInputs, Message, Plus, Query, Repeat, Zip } from "../../gateway/query/ir.ts";

/** One text in a prompt: a message, a fragment, or an output. */
export interface Text {
  readonly label: string;
  /** Indices of the texts in the same prompt that it sees. */
  readonly sees: readonly number[];
}

export interface Prompt {
  readonly texts: readonly Text[];
  /** In the order of reading; what stands in a plus has none. */
  readonly reading: string;
  /** Equal for two prompts exactly when the same texts see the same and are read in the same order. */
  readonly digest: string;
}

export interface Meaning {
  /** What the query answers, in order. */
  readonly answers: readonly string[];
  /** Digests of all runs, sorted; one object counts once, however often it stands in the query. */
  readonly runs: readonly string[];
  /** Fragments that are run for their effect alone. */
  readonly prepared: readonly string[];
}

/** A chat is a run like the others. */
type Run = Generate | Repeat;

interface Chain {
  /** Texts that the next text of this chain sees. */
  visible: number[];
  /** Read so far: a string for each text, a list for what has no order. */
  readonly read: (string | readonly string[])[];
  /** The child of a plus, which no preamble stands before. */
  readonly isSpan: boolean;
}

export class Visibility {
  readonly #numbers = new Map<string, string>();
  readonly #digests = new Map<object, string>();
  readonly #prompts = new Map<Query, Prompt>();
  readonly #chats = new Map<object, Run>();
  readonly #mapped = new Map<MapInputs, readonly Query[]>();

  meaningOf(query: Query): Meaning {
    const runs = new Map<object, string>();
    const prepared = new Set<string>();
    this.#collect(query, false, runs, prepared);
    const answers = this.#answersOf(query);
    return { answers, runs: [...runs.values()].sort(), prepared: [...prepared].sort() };
  }

  /** What a generate with this input reads. */
  promptOf(input: Query): Prompt {
    const known = this.#prompts.get(input);
    if (known !== undefined) return known;
    const texts: Text[] = [];
    const chain: Chain = { visible: [], read: [], isSpan: false };
    this.#put(input, chain, texts);
    const reading = readingOf(chain);
    const prompt = { texts, reading, digest: this.#number(`${reading} ${this.#relationOf(texts)}`) };
    this.#prompts.set(input, prompt);
    return prompt;
  }

  /** What is run: its options, how often, and its prompt. What shows it, and how judges are split, is not its own. */
  digestOf(run: Run): string {
    const known = this.#digests.get(run);
    if (known !== undefined) return known;
    const { options, input } = run.kind === "generate" ? run : run.generate;
    const { expose: _, reduce: __, ...own } = options;
    const entries = Object.entries(own).sort(([a], [b]) => (a < b ? -1 : 1));
    const digest = this.#number(JSON.stringify([sampleCount(run), entries, this.promptOf(input).digest]));
    this.#digests.set(run, digest);
    return digest;
  }

  /** Puts a node's texts behind what stands in the chain already. */
  #put(query: Query, chain: Chain, texts: Text[]): void {
    switch (query.kind) {
      case "message":
      case "fragment":
        return this.#putText(labelOf(query), chain, texts);
      case "seq":
      case "cross":
      case "par":
        for (const child of query.children) this.#put(child, chain, texts);
        return;
      case "monad":
        return;
      case "chat":
      case "generate":
      case "repeat": {
        const run = this.#runOf(query);
        if (exposeOf(run) === "both") this.#put(inputOf(run), chain, texts);
        return this.#putOutputs(run, chain, texts);
      }
      case "plus":
        return this.#putSpans(query, chain, texts);
      default:
        return this.#put(desugared(query, this.#runsOfMap), chain, texts);
    }
  }

  #putText(label: string, chain: Chain, texts: Text[]): void {
    texts.push({ label, sees: [...chain.visible] });
    chain.visible.push(texts.length - 1);
    chain.read.push(label);
  }

  /**
   * Samples in a row are plain text of the chain, each behind the last. But right behind its own input in a span each
   * sample stands as it was written, and no sample saw another.
   */
  #putOutputs(run: Run, chain: Chain, texts: Text[]): void {
    const label = `output ${this.digestOf(run)}`;
    const isBehindItsInput = chain.isSpan && readingOf(chain) === this.promptOf(inputOf(run)).reading;
    const before = [...chain.visible];
    for (let sample = 0; sample < sampleCount(run); sample++) {
      texts.push({ label, sees: isBehindItsInput ? before : [...chain.visible] });
      chain.visible.push(texts.length - 1);
      chain.read.push(label);
    }
  }

  /** Children see the preamble and no other child; what follows in the chain sees them all. */
  #putSpans({ children, preamble }: Plus, chain: Chain, texts: Text[]): void {
    const first = texts.length;
    const before: Chain = { visible: [], read: [], isSpan: false };
    if (preamble !== undefined) this.#put(preamble, before, texts);
    const readings = children.flatMap((child) => {
      const span: Chain = { visible: [...before.visible], read: [], isSpan: before.visible.length === 0 };
      this.#putChild(child, span, texts);
      // A plus of its own words only is no span that anybody could tell from its children.
      const [only, ...others] = span.read;
      const isBarePlus = before.read.length === 0 && Array.isArray(only) && others.length === 0;
      return isBarePlus ? [...only] : span.read.length === 0 ? [] : [readingOf(span)];
    });
    for (let index = first; index < texts.length; index++) chain.visible.push(index);
    const isAlone = before.read.length > 0;
    if (isAlone) chain.read.push(`(${readingOf(before)}){${readings.sort().join("|")}}`);
    else if (readings.length > 0) chain.read.push(readings.sort());
  }

  /** A run is shown with its input unless it says otherwise; alone, an output brings nothing of this prompt with it. */
  #putChild(child: Query, span: Chain, texts: Text[]): void {
    if (child.kind !== "generate" && child.kind !== "repeat" && child.kind !== "chat")
      return this.#put(child, span, texts);
    const run = this.#runOf(child);
    if (exposeOf(run) !== "output") {
      this.#put(inputOf(run), span, texts);
      return this.#putOutputs(run, span, texts);
    }
    for (let sample = 0; sample < sampleCount(run); sample++) {
      const label = `output ${this.digestOf(run)}`;
      texts.push({ label, sees: [] });
      span.visible.push(texts.length - 1);
      span.read.push(`alone ${label}`);
    }
  }

  /** The relation without the order that the texts happen to be listed in. */
  #relationOf(texts: readonly Text[]): string {
    const codes: string[] = [];
    for (const { label, sees } of texts) {
      const seen = sees.map((index) => codes[index] ?? "").sort();
      codes.push(this.#number(JSON.stringify([label, seen])));
    }
    return codes.sort().join(" ");
  }

  /** Outside prompts nothing is read; outputs and texts are answered in order. */
  #answersOf(query: Query): readonly string[] {
    switch (query.kind) {
      case "message":
      case "fragment":
        return [labelOf(query)];
      case "chat":
      case "generate":
      case "repeat": {
        const run = this.#runOf(query);
        return Array.from({ length: sampleCount(run) }, () => `output ${this.digestOf(run)}`);
      }
      case "monad":
        return [];
      case "plus":
        return [query.preamble ?? { kind: "seq" as const, children: [] }, ...query.children].flatMap((q) =>
          this.#answersOf(q),
        );
      case "seq":
      case "cross":
      case "par":
        return query.children.flatMap((child) => this.#answersOf(child));
      default:
        return this.#answersOf(desugared(query, this.#runsOfMap));
    }
  }

  #collect(query: Query, isEffect: boolean, runs: Map<object, string>, prepared: Set<string>): void {
    switch (query.kind) {
      case "message":
        return;
      case "fragment":
        if (isEffect) prepared.add(labelOf(query));
        return;
      case "chat":
      case "generate":
      case "repeat": {
        const run = this.#runOf(query);
        runs.set(query, this.digestOf(run));
        return this.#collect(inputOf(run), false, runs, prepared);
      }
      case "monad":
        return this.#collect(query.child, true, runs, prepared);
      case "plus":
        if (query.preamble !== undefined) this.#collect(query.preamble, isEffect, runs, prepared);
        for (const child of query.children) this.#collect(child, isEffect, runs, prepared);
        return;
      case "seq":
      case "cross":
      case "par":
        for (const child of query.children) this.#collect(child, isEffect, runs, prepared);
        return;
      default:
        return this.#collect(desugared(query, this.#runsOfMap), isEffect, runs, prepared);
    }
  }

  #runOf(query: Extract<Query, { kind: "chat" | "generate" | "repeat" }>): Run {
    if (query.kind !== "chat") return query;
    const options = { model: "", maxTokens: 0, temperature: 0.6 };
    const made: Run = this.#chats.get(query) ?? {
      kind: "generate",
      options,
      input: { kind: "seq", children: query.children },
    };
    this.#chats.set(query, made);
    return made;
  }

  /** The same objects each time: a map is as many runs as it has strings. */
  /** What a zip is another way to write; one with nothing runs nothing of what it was to zip. */
  joinOf(zip: Zip): Query {
    return desugared(zip, this.#runsOfMap);
  }

  readonly #runsOfMap = (map: MapInputs): readonly Query[] => {
    const generate = (text: string): Query => ({
      kind: "generate",
      options: map.options,
      input: { kind: "message", role: "user", text },
    });
    const made = this.#mapped.get(map) ?? map.inputs.map(generate);
    this.#mapped.set(map, made);
    return made;
  };

  #number(text: string): string {
    const known = this.#numbers.get(text) ?? `n${this.#numbers.size}`;
    this.#numbers.set(text, known);
    return known;
  }
}

const inputOf = (run: Run) => (run.kind === "generate" ? run : run.generate).input;
const exposeOf = (run: Run) => (run.kind === "generate" ? run : run.generate).options.expose;
const sampleCount = (run: Run) => (run.kind === "generate" ? 1 : run.n);

const readingOf = ({ read }: Chain) =>
  read.map((part) => (typeof part === "string" ? part : `{${part.join("|")}}`)).join(" ");

function labelOf(query: Message | Fragment): string {
  if (query.kind === "message") return `${query.role} ${JSON.stringify(query.text)}`;
  return `fragment ${JSON.stringify("id" in query ? { id: query.id } : { text: query.text, title: query.title })}`;
}

/** What a node is another way to write. */
function desugared(query: Query, runsOfMap: (map: MapInputs) => readonly Query[]): Query {
  switch (query.kind) {
    case "map":
      return { kind: "plus", children: runsOfMap(query) };
    case "retrieved":
      return { kind: "plus", children: query.fragments };
    case "zip": {
      let second = query.second;
      while (["map", "retrieved", "zip"].includes(second.kind)) second = desugared(second, runsOfMap);
      if (second.kind !== "plus" && second.kind !== "seq" && second.kind !== "cross" && second.kind !== "par") {
        return { kind: "seq", children: [query.first, second] };
      }
      const before = (child: Query) => (child.kind === "monad" ? [child] : [query.first, child]);
      return { ...second, children: second.children.flatMap(before) };
    }
    default:
      throw new Error(`a ${query.kind} has no meaning here`);
  }
}

import { describe, expect, spyOn, test } from "bun:test";
import { type LowerDocument, Lowerer, type LowerMessage } from "../../gateway/lower/plan.ts";
import type { ModelText } from "../../gateway/text/model-text.ts";
import { foldSpan, rootKey, runBlockKeys } from "../../worker/contract/block-key.ts";
import type { TokenPlan } from "../../worker/contract/messages.ts";
import type { CacheSalt } from "../../worker/contract/units.ts";
import { fc } from "../support/fast-check.ts";
import { models, ownTokens, textSide } from "../text/models.ts";

const salt = "dGVuYW50" as CacheSalt;
const corpusSalt = "Y29ycHVz" as CacheSalt;
const card = { digest: "ab".repeat(32), blockTokens: 4, contextTokens: 100_000 };

const lowerer = (model: ModelText) => new Lowerer({ ...textSide(model), card, cacheBytes: 1_000_000 });
const allTokens = (plan: TokenPlan): number[] => plan.runs.flatMap((run) => [...run.tokenIds]);
const document = (id: string, text: string, title?: string): LowerDocument => ({ id, text, title, salt: corpusSalt });
const message = (role: string, content: string): LowerMessage => ({ role, content });
const conversation = [
  message("system", "  You answer from the documents.\n"),
  message("user", " the thing in the\n\n"),
  message("assistant", "\tan answer 123 "),
  message("user", "Who is the user's\nmanager? "),
];

describe("a prompt is the model's own", () => {
  for (const [name, model] of Object.entries(models)) {
    test(`${name}: without documents`, () => {
      for (const messages of [conversation, conversation.slice(1), conversation.slice(0, 2)]) {
        const plan = lowerer(model).lower({ messages, documents: [], salt, attention: "span" });
        expect(allTokens(plan)).toEqual(ownTokens(model, messages));
        expect(plan.runs.length).toBe(1);
      }
    });
  }

  for (const name of ["chatml", "llama3"] as const) {
    test(`${name}: documents stand as messages of their own role after the system message`, () => {
      const model = models[name];
      const documents = [document("a", "the first\n"), document("b", " second  thing", "A title")];
      const asMessages = [message("document", "the first\n"), message("document", "Title: A title\n second  thing")];
      const [system, ...rest] = conversation;
      const own = ownTokens(model, [system as LowerMessage, ...asMessages, ...rest]);
      for (const attention of ["span", "full"] as const) {
        const plan = lowerer(model).lower({ messages: conversation, documents, salt, attention });
        expect(allTokens(plan)).toEqual(own);
        expect(plan.runs.map((run) => run.kind)).toEqual(
          attention === "full" ? ["main"] : ["main", "span", "span", "main"],
        );
      }
    });
  }

  for (const [name, model] of Object.entries(models)) {
    test(`${name}: ends within an answer that has begun, just before what would close it`, () => {
      // Where its text ends in a space, that and a space of the template behind it may become one token.
      const begun = [message("user", " the thing"), message("assistant", "\tan answer 123")];
      const { template, tokenizer } = textSide(model);
      const input = { documents: [], salt, attention: "span", continuesLast: true } as const;
      const plan = allTokens(lowerer(model).lower({ ...input, messages: begun }));
      const closed = ownTokens(model, begun);
      expect(closed.slice(0, plan.length)).toEqual(plan);
      const text = template.messages.inside("assistant")?.after ?? "";
      const after = tokenizer.encode([{ kind: "template", text }], false);
      expect(after.length).toBeGreaterThan(0);
      expect(closed.slice(plan.length, plan.length + after.length)).toEqual([...after]);
    });
  }

  test("documents stand before an answer that has begun as before any other", () => {
    const messages = conversation.slice(0, 3);
    const documents = [document("a", "the first\n")];
    const lower = (continuesLast: boolean) =>
      lowerer(models.chatml).lower({ messages, documents, salt, attention: "span", continuesLast });
    const [head, span, tail] = lower(true).runs;
    const [wholeHead, wholeSpan, wholeTail] = lower(false).runs;
    expect([head?.tokenIds, span?.tokenIds]).toEqual([wholeHead?.tokenIds, wholeSpan?.tokenIds]);
    const text = "\n<|im_start|>assistant\n\tan answer 123 ";
    const end = textSide(models.chatml).tokenizer.encode([{ kind: "template", text }], false);
    expect([...(tail?.tokenIds ?? [])].slice(-end.length)).toEqual([...end]);
    expect([...(wholeTail?.tokenIds ?? [])].slice(0, tail?.tokenIds.length)).toEqual([...(tail?.tokenIds ?? [])]);
  });

  test("a template that does not show an answer that has begun refuses it", () => {
    const silent =
      "{% for m in messages %}{% if m.role == 'user' %}{{ '<|im_start|>' + m.content }}{% endif %}{% endfor %}";
    const messages = conversation.slice(1, 3);
    const lower = () =>
      lowerer({ ...models.chatml, chatTemplate: silent }).lower({
        messages,
        documents: [],
        salt,
        attention: "span",
        continuesLast: true,
      });
    expect(lower).toThrow("refuses messages with these roles");
  });

  test("a template that knows no role 'document' gets them as users, between system and conversation", () => {
    const { template } = textSide(models.strict);
    expect(template.document).toEqual({ role: "user", before: "<user>", after: "<end>\n" });
    const plan = lowerer(models.strict).lower({
      messages: conversation.slice(1),
      documents: [document("a", " in the thing ")],
      salt,
      attention: "span",
    });
    const [head, span, tail] = plan.runs.map((run) => [...run.tokenIds]);
    const whole = ownTokens(models.strict, conversation.slice(1));
    expect([...(head ?? []), ...(tail ?? [])]).toEqual(whole);
    const alone = ownTokens(models.strict, [message("user", "in the thing")]);
    expect(alone.join()).toContain((span ?? []).join());
  });

  test("a template that folds the system message into a user's gives documents a place before both", () => {
    const { template } = textSide(models.folding);
    expect(template.document).toEqual({ role: "user", before: "<s>[INST] ", after: " [/INST]" });
    const input = { documents: [document("a", "in the thing")], salt, attention: "span" as const };
    const plan = lowerer(models.folding).lower({ ...input, messages: conversation.slice(0, 2) });
    const own = ownTokens(models.folding, conversation.slice(0, 2));
    expect(plan.runs.map((run) => run.kind)).toEqual(["span", "main"]);
    expect([...(plan.runs[1]?.tokenIds ?? [])]).toEqual(own);
  });

  test("any text, with any white space, in any place", () => {
    const content = fc.string({
      unit: fc.constantFrom(" ", "\n", "\t", "the", "a", "é", "世", "😀", "<|", "|>", "'s", "7"),
    });
    fc.assert(
      fc.property(fc.array(content, { minLength: 1, maxLength: 4 }), (contents) => {
        for (const model of [models.chatml, models.llama3, models.rstrip]) {
          const messages = contents.map((text, index) => message(index % 2 === 0 ? "user" : "assistant", text));
          const plan = lowerer(model).lower({ messages, documents: [], salt, attention: "span" });
          expect(allTokens(plan)).toEqual(ownTokens(model, messages));
        }
      }),
      { numRuns: 100 },
    );
  });
});

describe("text stays text", () => {
  test("control tokens in a question or a document never become control ids", () => {
    for (const model of Object.values(models)) {
      const controls = model.tokenizer.added_tokens;
      const attack = `x${controls.map((token) => token.content).join("")}y ${controls[1]?.content}\n`;
      const count = (plan: TokenPlan): number => allTokens(plan).filter((id) => id < controls.length).length;
      const one = (text: string) =>
        lowerer(model).lower({
          messages: [message("user", text)],
          documents: [document("d", text, text.trim())],
          salt,
          attention: "span",
        });
      expect(count(one(attack))).toBe(count(one("harmless")));
    }
  });
});

describe("the plan", () => {
  const documents = [document("a", "the first thing"), document("b", "another in the row, longer than a block")];
  const input = { messages: conversation, documents, salt, attention: "span" as const };
  const plan = lowerer(models.chatml).lower(input);
  const [head, spanA, spanB, tail] = plan.runs;
  if (head === undefined || spanA === undefined || spanB === undefined || tail === undefined) throw new Error("runs");

  test("positions and what is seen", () => {
    const lengths = [head, spanA, spanB].map((run) => run.tokenIds.length);
    const [headTokens = 0, aTokens = 0, bTokens = 0] = lengths;
    expect(plan.runs.map((run) => run.position)).toEqual([0, 0, 0, headTokens + aTokens + bTokens]);
    expect(spanA.sees).toEqual([]);
    expect(tail.sees).toEqual([
      { run: 0, firstToken: 0, tokenCount: headTokens, offset: 0 },
      { run: 1, firstToken: 0, tokenCount: aTokens, offset: headTokens },
      { run: 2, firstToken: 0, tokenCount: bTokens, offset: headTokens + aTokens },
    ]);
  });

  test("keys: closed runs key their last block, spans hang on the owner's salt, the main chain folds them in order", () => {
    const root = rootKey(card.digest, salt, "main");
    expect(head.blockKeys).toEqual(runBlockKeys(root, head.tokenIds, 4, true));
    expect(spanA.rootKey).toBe(rootKey(card.digest, corpusSalt, "span"));
    const last = (keys: typeof head.blockKeys) => keys.at(-1) ?? root;
    const folded = foldSpan(foldSpan(last(head.blockKeys), last(spanA.blockKeys)), last(spanB.blockKeys));
    expect(tail.rootKey).toBe(folded);
    expect(tail.blockKeys.length).toBe(Math.floor(tail.tokenIds.length / 4));
  });

  test("a span is the same in every order and prompt, and as prepared; the conversation is not", () => {
    const other = lowerer(models.chatml).lower({ ...input, documents: [...documents].reverse() });
    expect(other.runs[2]?.blockKeys).toEqual(spanA.blockKeys);
    expect(other.runs[3]?.rootKey).not.toBe(tail.rootKey);
    const prepared = lowerer(models.chatml).preparePlan(documents);
    expect(prepared.runs.map((run) => run.blockKeys)).toEqual([spanA.blockKeys, spanB.blockKeys]);
  });

  test("another salt shares no key", () => {
    const strange = lowerer(models.chatml).lower({
      ...input,
      salt: "b3RoZXI=" as CacheSalt,
      documents: documents.map((one) => ({ ...one, salt: "b3RoZXI=" as CacheSalt })),
    });
    const keys = new Set(plan.runs.flatMap((run) => [...run.blockKeys, run.rootKey]));
    expect(strange.runs.flatMap((run) => [...run.blockKeys, run.rootKey]).filter((key) => keys.has(key))).toEqual([]);
  });

  test("arrays are exactly as long as their runs: a copy across processes carries no more", () => {
    for (const run of plan.runs) expect(run.tokenIds.buffer.byteLength).toBe(run.tokenIds.byteLength);
  });

  test("what cannot fit is refused before it is encoded", () => {
    const long = "a".repeat(10_000_000);
    const refused = () => lowerer(models.chatml).lower({ ...input, messages: [message("user", long)] });
    expect(refused).toThrow("maximum context length is 100000 tokens");
    // One character makes the difference between what may fit and what cannot.
    const text = textSide(models.chatml);
    const small = new Lowerer({ ...text, card: { ...card, contextTokens: 10 }, cacheBytes: 1_000 });
    const lower = (chars: number) =>
      small.lower({ ...input, documents: [], messages: [message("user", "a".repeat(chars))] });
    const most = 10 * text.tokenizer.maxTokenChars;
    expect(lower(most).runs).toHaveLength(1);
    expect(() => lower(most + 1)).toThrow("maximum context length is 10 tokens");
  });

  test("a row of roles the template refuses is an error that names the roles", () => {
    const refused = () => lowerer(models.strict).lower({ ...input, messages: [message("assistant", "x")] });
    expect(refused).toThrow("roles in this order: assistant");
  });

  test("a template that leaves a message out is refused rather than obeyed", () => {
    const deaf = {
      ...models.chatml,
      chatTemplate: models.chatml.chatTemplate.replace("%}{{", "%}{{ '' if message['role'] == 'assistant' else"),
    };
    const refused = () => lowerer(deaf).lower({ ...input, documents: [] });
    expect(refused).toThrow("roles in this order: system, user, assistant, user");
  });

  test("system messages alone still leave an open run", () => {
    const only = lowerer(models.chatml).lower({ ...input, messages: conversation.slice(0, 1) });
    expect(only.runs.at(-1)?.kind).toBe("main");
    expect(only.runs.at(-1)?.tokenIds.length).toBeGreaterThan(0);
  });
});

test("each text is encoded under the salt of its owner, ahead of use and in use", async () => {
  const { tokenizer, template } = textSide(models.chatml);
  const warmed = spyOn(tokenizer, "warm");
  const encoded = spyOn(tokenizer, "encode");
  const own = { ...document("a", "mine"), salt };
  const input = { messages: conversation, documents: [own, document("b", "the corpus's")], salt };
  for (const [attention, owners] of [
    ["span", [salt, corpusSalt, salt]],
    ["full", [salt, corpusSalt, salt, salt]],
  ] as const) {
    warmed.mockClear();
    encoded.mockClear();
    const prompt = new Lowerer({ tokenizer, template, card, cacheBytes: 1_000_000 });
    await prompt.warm({ ...input, attention });
    expect(warmed.mock.calls.map(([, , owner]) => owner)).toEqual([...owners]);
    prompt.lower({ ...input, attention });
    const used = encoded.mock.calls.map(([, , owner]) => owner);
    expect(used).toEqual(attention === "full" ? [salt, corpusSalt] : [salt, salt, salt, corpusSalt]);
  }
});

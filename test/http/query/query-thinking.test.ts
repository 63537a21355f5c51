/** Thinking of models in span queries: apart from the answers, whole and streamed; outputs in prompts keep theirs. */
import { describe, expect, test } from "bun:test";
import { fakeLinks } from "../../dispatch/fake-link.ts";
import { type ReasoningFamily, reasoningModels, written } from "../../text/reasoning-models.ts";
import { tickingLinks } from "../chat-rig.ts";
import { ask, post, queryRig } from "../query-rig.ts";

const [thought, said] = ["Is it <b>Oslo</b>? 🙂\n\nYes.", "It is Oslo."];
const g = (input: unknown, more: object = {}) => ({ g: { model: "", max_tokens: 400, ...more, input } });
const question = { user: "Where?" };

function rigOf(family: ReasoningFamily) {
  const { openLink, processes } = fakeLinks();
  const rig = queryRig({ openLink: tickingLinks(openLink, processes), model: reasoningModels[family] });
  processes[0]?.ready();
  const answer = [{ kind: "template", text: written[family](thought, said) }] as const;
  if (processes[0]) processes[0].core.answer = () => [...rig.text.tokenizer.encode(answer, false)];
  return rig;
}

interface Chunk {
  readonly choices: readonly {
    readonly index: number;
    readonly text?: string;
    readonly reasoning_content?: string;
    readonly delta?: { readonly content?: string; readonly reasoning_content?: string };
  }[];
}

async function chunksOf(response: Response | Promise<Response>): Promise<Chunk["choices"]> {
  const lines = (await (await response).text()).split("\n").filter((line) => line.startsWith("data: {"));
  return lines.flatMap((line) => (JSON.parse(line.slice(6)) as Chunk).choices);
}

const joined = (parts: readonly (string | undefined)[]): string => parts.map((part = "") => part).join("");

describe.each(["qwen3", "r1", "smollm3", "gptOss"] as const)("%s", (family) => {
  test("a query's answer has its thinking beside it, with its tokens counted", async () => {
    const rig = rigOf(family);
    const { choices, usage } = await ask(rig, g({ seq: [{ system: "You know towns." }, question] }));
    expect(choices[0]?.message).toMatchObject({ content: said, reasoning_content: thought });
    expect(usage.completion_tokens_details.reasoning_tokens).toBeGreaterThan(5);
    expect(usage.completion_tokens_details.reasoning_tokens).toBeLessThan(usage.completion_tokens - 2);
    const deltas = (await chunksOf(post(rig, "execute?stream=true", g(question)))).map(({ delta }) => delta);
    expect(joined(deltas.map((delta) => delta?.reasoning_content))).toBe(thought);
    expect(joined(deltas.map((delta) => delta?.content))).toBe(said);
  });

  test("so have the answers of a map", async () => {
    const rig = rigOf(family);
    const map = { map: { metadata: { model: "", max_tokens: 400 }, inputs: ["Oslo?", "Bergen?"] } };
    const { choices } = await ask(rig, map);
    expect(choices.map(({ text, reasoning_content: thinking }) => [text, thinking])).toEqual([
      [said, thought],
      [said, thought],
    ]);
    const chunks = await chunksOf(post(rig, "execute?stream=true", map));
    const of = (choice: number) => chunks.filter(({ index }) => index === choice);
    for (const choice of [0, 1]) {
      expect(joined(of(choice).map(({ reasoning_content: thinking }) => thinking))).toBe(thought);
      expect(joined(of(choice).map(({ text }) => text))).toBe(said);
    }
  });

  test("an output that stands in a prompt is all that was written", async () => {
    const rig = rigOf(family);
    await ask(rig, g({ seq: [{ plus: [g(question)] }, question] }));
    const outer = rig.submits().findLast(({ params }) => params.maxTokens > 0);
    const tokens = outer?.plan.runs.flatMap(({ tokenIds }) => [...tokenIds]) ?? [];
    const all = rig.text.tokenizer.encode([{ kind: "template", text: written[family](thought, said) }], false);
    expect(tokens.join()).toContain([...all].join());
  });
});

/** The tree of a query as a picture: a box for each node under the one that holds it, with what of it is held already. */
import { count } from "../kit/format.ts";
import { visible } from "../kit/name.tsx";
import type { Held, TreeRow } from "./tree.ts";

interface TreeDrawingProps {
  readonly rows: readonly TreeRow[];
  readonly isWhole: boolean;
  readonly held: ReadonlyMap<string, Held>;
  /** Of the node that an error names. */
  readonly wrongPath?: string | undefined;
}

/** What is held stands at the left, where it is in sight however long the texts are. */
const [rowHeight, indent, barWidth, left] = [30, 22, 50, 225];
const charWidth = 7.4;

const families: Readonly<Record<string, string>> = {
  ...{ g: "generate", repeat: "generate", map: "generate", chat: "generate" },
  ...{ fragment: "text", retrieve: "text", retrieved: "text", augment: "text" },
  ...{ plus: "commutes", user: "message", system: "message", assistant: "message" },
};

export function TreeDrawing({ rows, isWhole, held, wrongPath }: TreeDrawingProps) {
  const texts = rows.map(({ kind, text }) => visible(text === "" ? kind : `${kind} ${text}`));
  const widest = Math.max(...rows.map(({ depth }, at) => depth * indent + (texts[at]?.length ?? 0) * charWidth), 200);
  const width = Math.ceil(left + widest + 40);
  const height = rows.length * rowHeight + 8;
  return (
    // biome-ignore lint/a11y/noNoninteractiveTabindex: what scrolls has to be reached by keyboard.
    <section class="tree" aria-label="Tree of the query" tabIndex={0}>
      <svg
        width={width}
        height={height}
        viewBox={`0 0 ${width} ${height}`}
        role="img"
        aria-label={spokenOf(rows, held)}
      >
        {rows.map((row, index) => (
          <Branch key={row.path} rows={rows} index={index} />
        ))}
        {rows.map((row, index) => (
          <Node
            key={row.path}
            row={row}
            text={texts[index] ?? row.kind}
            y={index * rowHeight + 4}
            held={held.get(row.path)}
            isWrong={row.path === wrongPath}
          />
        ))}
      </svg>
      {!isWhole && <p class="soft">The tree has more nodes than are drawn.</p>}
    </section>
  );
}

/** The line from a node's holder. */
function Branch({ rows, index }: { readonly rows: readonly TreeRow[]; readonly index: number }) {
  const { depth = 0 } = rows[index] ?? {};
  const holder = rows.findLastIndex((row, at) => at < index && row.depth === depth - 1);
  if (depth === 0 || holder < 0) return null;
  const x = left + (depth - 1) * indent + 8;
  const [from, to] = [holder * rowHeight + 26, index * rowHeight + 15];
  return <path class="branch" d={`M${x} ${from}V${to}H${left + depth * indent}`} />;
}

interface NodeProps {
  readonly row: TreeRow;
  readonly text: string;
  readonly y: number;
  readonly held: Held | undefined;
  readonly isWrong: boolean;
}

function Node({ row: { depth, kind }, text, y, held, isWrong }: NodeProps) {
  const x = left + depth * indent;
  const width = text.length * charWidth + 14;
  const bar = 8;
  const share = held === undefined || held.tokens === 0 ? 0 : Math.min(1, held.cached / held.tokens);
  return (
    <g class={`node ${families[kind] ?? "order"}${isWrong ? " wrong" : ""}`}>
      <rect x={x} y={y} width={width} height={22} rx={4} />
      <text x={x + 7} y={y + 15.5}>
        <tspan class="kind">{kind}</tspan>
        {text.slice(kind.length)}
      </text>
      {held !== undefined && (
        <>
          <rect class="bar-back" x={bar} y={y + 6} width={barWidth} height={10} />
          <rect class="bar-held" x={bar} y={y + 6} width={barWidth * share} height={10} />
          <text class="figures" x={bar + barWidth + 8} y={y + 15.5}>
            {held.isKnown ? "" : "at most "}
            {count(held.tokens)} tokens, {count(held.cached)} held
          </text>
        </>
      )}
    </g>
  );
}

const spokenOf = (rows: readonly TreeRow[], held: ReadonlyMap<string, Held>): string =>
  `${count(rows.length)} nodes: ${rows
    .slice(0, 40)
    .map(({ path, depth, kind }) => {
      const known = held.get(path);
      const tokens = known === undefined ? "" : `, ${count(known.tokens)} tokens, ${count(known.cached)} held`;
      return `level ${depth + 1} ${kind}${tokens}`;
    })
    .join("; ")}`;

/**
 * A table of any length: only the rows in sight, and some around them, are on the page. Rows have one height, which the
 * style sheet says as well.
 */
import type { ComponentChildren } from "preact";
import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";
import { count } from "./format.ts";
import { ErrorNote } from "./parts.tsx";
import type { List } from "./resource.ts";

export interface Column<Row> {
  readonly title: string;
  /** Numbers stand at the right, so that their digits are below each other. */
  readonly isNumber?: boolean;
  /** A part of the table's width, beside the others'; 1 unless given. */
  readonly width?: number;
  readonly cell: (row: Row) => ComponentChildren;
}

export interface TableProps<Row> {
  /** What the rows are, for screen readers: "API keys". */
  readonly title: string;
  readonly columns: readonly Column<Row>[];
  readonly rows: readonly Row[];
  readonly keyOf: (row: Row) => string;
  /** What stands there when there are no rows. */
  readonly empty?: ComponentChildren;
  /** Called when the end comes near. */
  readonly onEnd?: (() => void) | undefined;
  /** There are more rows than these. */
  readonly hasMore?: boolean;
  readonly isLoading?: boolean;
}

const rowPixels = 32;
/** Of a column with the width 1: on narrow screens a table is scrolled sideways rather than cut off in each cell. */
const leastColumnRem = 6;
/** Rows beyond those in sight, above and below. */
const aroundRows = 8;
/** Whatever the window's height: a table is at most so many rows high. */
const mostInSight = 40;

export function Table<Row>(props: TableProps<Row>) {
  const { title, columns, rows, keyOf, empty = "There is nothing here yet.", onEnd, hasMore = false } = props;
  const box = useRef<HTMLDivElement>(null);
  const [scrolled, setScrolled] = useState(0);
  const [height, setHeight] = useState(rowPixels * 16);
  useEffect(() => {
    const { current } = box;
    if (current === null) return;
    const observer = new ResizeObserver(() => setHeight(current.clientHeight));
    observer.observe(current);
    return () => observer.disconnect();
  }, []);
  const focused = useRef<EventTarget | null>(null);
  // A row that goes, or is scrolled out of sight, takes the focus along: the table has it then, and its keys go on.
  useLayoutEffect(() => {
    if (!(focused.current instanceof Element) || focused.current.isConnected) return;
    focused.current = null;
    if (document.activeElement === document.body) box.current?.focus({ preventScroll: true });
  });
  const inSight = Math.min(mostInSight, Math.ceil(height / rowPixels));
  const first = Math.max(0, Math.min(rows.length - 1, Math.floor(scrolled / rowPixels)) - aroundRows);
  const end = Math.min(rows.length, first + inSight + 2 * aroundRows);
  useEffect(() => {
    if (hasMore && end >= rows.length - aroundRows) onEnd?.();
  }, [hasMore, end, rows.length, onEnd]);
  const spacer = (count: number) =>
    count > 0 && (
      // biome-ignore lint/a11y/noAriaHiddenOnFocusable: a row is none, and this one holds nothing.
      <tr aria-hidden="true" class="spacer">
        <td colSpan={columns.length} style={{ height: `${count * rowPixels}px` }} />
      </tr>
    );
  const total = columns.reduce((sum, { width = 1 }) => sum + width, 0);
  return (
    <section
      class="table"
      ref={box}
      // biome-ignore lint/a11y/noNoninteractiveTabindex: what scrolls has to be reached by keyboard.
      tabIndex={0}
      aria-label={title}
      onFocusIn={({ target }) => {
        focused.current = target;
      }}
      onFocusOut={({ target }) => {
        // Told of what is being removed too, while it is still there.
        queueMicrotask(() => {
          if (target === focused.current && target instanceof Element && target.isConnected) focused.current = null;
        });
      }}
      onScroll={(event) => setScrolled(event.currentTarget.scrollTop)}
    >
      <table aria-rowcount={hasMore ? -1 : rows.length + 1} style={{ minWidth: `${total * leastColumnRem}rem` }}>
        <colgroup>
          {columns.map(({ title: name, width = 1 }) => (
            <col key={name} style={{ width: `${(width / total) * 100}%` }} />
          ))}
        </colgroup>
        <thead>
          <tr aria-rowindex={1}>
            {columns.map(({ title: name, isNumber }) => (
              <th key={name} scope="col" class={isNumber ? "number" : ""}>
                {name}
              </th>
            ))}
          </tr>
        </thead>
        <tbody>
          {spacer(first)}
          {rows.slice(first, end).map((row, index) => (
            <tr key={keyOf(row)} aria-rowindex={first + index + 2}>
              {columns.map(({ title: name, isNumber, cell }) => (
                <td key={name} class={isNumber ? "number" : ""}>
                  {cell(row)}
                </td>
              ))}
            </tr>
          ))}
          {spacer(rows.length - end)}
        </tbody>
      </table>
      {rows.length === 0 && <p class="empty">{props.isLoading ? "Loading …" : empty}</p>}
    </section>
  );
}

type ListTableProps<Row> = Omit<TableProps<Row>, "rows" | "keyOf" | "onEnd" | "hasMore" | "isLoading"> & {
  readonly list: List<Row>;
};

/** A list of the API as a table, which asks for more as one scrolls. */
export function ListTable<Row extends { readonly id: string }>({ list, ...props }: ListTableProps<Row>) {
  return (
    <>
      {list.error !== undefined && <ErrorNote message={list.error} onRetry={list.reload} />}
      <Table
        {...props}
        rows={list.rows}
        keyOf={({ id }) => id}
        onEnd={list.more}
        hasMore={list.hasMore}
        isLoading={list.isLoading}
      />
      <p class="soft foot">
        {list.isLoading && list.rows.length === 0
          ? "\u00a0"
          : `${count(list.rows.length)} ${list.hasMore ? "so far; more come as you scroll" : "in all"}`}
      </p>
    </>
  );
}

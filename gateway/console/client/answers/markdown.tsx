/** What a model wrote, as elements of the page. */
import type { ComponentChildren } from "preact";
import { type Mark, type MarkdownNode, markdownTree } from "./markdown-tree.ts";

export interface MarkdownProps {
  readonly text: string;
  readonly marks?: readonly Mark[];
  /** What stands for a mark. */
  readonly mark?: (source: number) => ComponentChildren;
}

export function Markdown({ text, marks = [], mark }: MarkdownProps) {
  const tree = markdownTree(text, marks);
  if (tree === undefined) return <p class="plain-text">{text}</p>;
  return <div class="prose">{shown(tree, mark)}</div>;
}

const shown = (nodes: readonly MarkdownNode[], mark: MarkdownProps["mark"]): ComponentChildren =>
  nodes.map((node, index) => <Shown key={index} node={node} mark={mark} />);

function Shown({ node, mark }: { readonly node: MarkdownNode; readonly mark: MarkdownProps["mark"] }) {
  if ("text" in node) return <>{node.text}</>;
  if ("source" in node) return <>{mark?.(node.source)}</>;
  const children = shown(node.children, mark);
  if ("href" in node) {
    return (
      <a href={node.href} target="_blank" rel="noopener noreferrer">
        {children}
      </a>
    );
  }
  if ("start" in node) return <ol start={node.start}>{children}</ol>;
  const { tag: Tag } = node;
  return Tag === "hr" || Tag === "br" ? <Tag /> : <Tag>{children}</Tag>;
}

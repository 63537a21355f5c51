/**
 * Text that somebody else chose: names of files, tenants and keys. It stands apart from the text around it, so that
 * letters that are written from right to left do not turn that around, and what cannot be seen is shown by its number.
 */
const unseen = new RegExp(
  `[${[
    ...["\\u0000-\\u001f", "\\u007f-\\u009f", "\\u00ad", "\\u061c", "\\u180e", "\\u200b-\\u200f"],
    ...["\\u2028-\\u202e", "\\u2060-\\u206f", "\\ufeff", "\\ufff9-\\ufffb"],
  ].join("")}]`,
  "gu",
);

const numberOf = (sign: string): string =>
  `U+${(sign.codePointAt(0) ?? 0).toString(16).toUpperCase().padStart(4, "0")}`;

/** The text with what cannot be seen as `U+202E`; for where only text can stand, as in titles. */
export const visible = (text: string): string => text.replace(unseen, (sign) => `⟨${numberOf(sign)}⟩`);

/** @param text as it came; @param absent what stands for an empty one */
export function Name({ text, absent = "(no name)" }: { readonly text: string | null; readonly absent?: string }) {
  if (text === null || text === "") return <span class="soft">{absent}</span>;
  const parts = text.split(new RegExp(`(${unseen.source})`, "u"));
  return (
    <bdi class="name" title={visible(text)}>
      {parts.map((part, index) => (index % 2 === 0 ? part : <span class="unseen">{numberOf(part)}</span>))}
    </bdi>
  );
}

/** A model's folder whose text side is no good is told of by its name, at the start. */
import { afterAll, expect, test } from "bun:test";
import { copyFileSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { demoModelFolder } from "../../gateway/cli/demo-corpora.ts";
import { openText } from "../../gateway/compose/text.ts";
import { parseConfig } from "../../gateway/config.ts";

const folder = mkdtempSync(join(tmpdir(), "spangate-text-"));
afterAll(() => rmSync(folder, { recursive: true, force: true }));

test.each([
  ["ends too early", "{% for message in messages %}{{ message.content"],
  ["writes no message", '{{ raise_exception("no") }}'],
])("a chat template that %s", (_what, template) => {
  for (const name of ["tokenizer.json", "tokenizer_config.json"]) {
    copyFileSync(join(demoModelFolder, name), join(folder, name));
  }
  writeFileSync(join(folder, "chat_template.jinja"), template);
  const open = () => openText(parseConfig({ SPANGATE_MODEL: folder }));
  expect(open).toThrow(new RegExp(`^${folder}: chat template: .{5,}`));
});

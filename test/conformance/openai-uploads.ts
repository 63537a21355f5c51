/** `openai`: a large file in parts, over a restart of the server, and what becomes of it in a vector store and a batch. */
import { beforeAll, describe, expect, test } from "bun:test";
import OpenAI, { toFile } from "openai";
import { type Suite, thrownBy } from "./suite.ts";

export function openaiUploads(suite: Suite): void {
  describe("openai: uploads in parts", () => {
    let client: OpenAI;
    const md5Of = (bytes: Uint8Array): string => new Bun.CryptoHasher("md5").update(bytes).digest("hex");
    /** As an application does: slices of the file, several at the same time, then all in order. */
    const addAll = async (id: string, bytes: Uint8Array, partBytes: number): Promise<string[]> => {
      const starts = Array.from({ length: Math.ceil(bytes.length / partBytes) }, (_, i) => i * partBytes);
      const parts = starts.map(async (start) => {
        const data = await toFile(bytes.subarray(start, start + partBytes));
        return (await client.uploads.parts.create(id, { data })).id;
      });
      return await Promise.all(parts);
    };
    const create = (filename: string, bytes: Uint8Array, purpose: OpenAI.FilePurpose = "assistants") =>
      client.uploads.create({ filename, bytes: bytes.length, mime_type: "text/markdown", purpose });

    beforeAll(async () => {
      const { apiKey } = await suite.tenant("openai-uploads");
      client = new OpenAI({ baseURL: `${suite.url}/v1`, apiKey, maxRetries: 0 });
    });

    test("a file of megabytes that is the same as one uploaded whole", async () => {
      const bytes = Buffer.alloc(5_000_000, "Filler of a file that is large.\n");
      const upload = await create("large.md", bytes);
      expect(upload).toMatchObject({ object: "upload", status: "pending", bytes: bytes.length });
      expect(upload.expires_at - upload.created_at).toBe(3_600);
      const partIds = await addAll(upload.id, bytes, 1_000_000);
      const done = await client.uploads.complete(upload.id, { part_ids: partIds, md5: md5Of(bytes) });
      expect(done).toMatchObject({ status: "completed", file: { filename: "large.md", bytes: bytes.length } });
      const content = await client.files.content(done.file?.id ?? "");
      expect(Buffer.from(await content.arrayBuffer()).equals(bytes)).toBe(true);
      const whole = await client.files.create({ file: await toFile(bytes, "large.md"), purpose: "assistants" });
      expect(whole).toEqual(done.file as OpenAI.FileObject);
    });

    test("goes on after a restart of the server, and is found in a vector store", async () => {
      const bytes = Buffer.from("- Lena Farrow works as a pilot.\n- The extension of Lena Farrow is 6120.\n");
      const upload = await create("farrow.md", bytes);
      const first = await client.uploads.parts.create(upload.id, { data: await toFile(bytes.subarray(0, 20)) });
      await suite.stopServer();
      await suite.startAgain();
      const data = new File([bytes.subarray(20)], "rest");
      const { id: second } = await client.uploads.parts.create(upload.id, { data });
      const { file } = await client.uploads.complete(upload.id, { part_ids: [first.id, second] });
      const store = await client.vectorStores.create({ name: "uploads" });
      const poll = { pollIntervalMs: 20 };
      const attached = await client.vectorStores.files.createAndPoll(store.id, { file_id: file?.id ?? "" }, poll);
      expect(attached.status).toBe("completed");
      const found = await client.vectorStores.search(store.id, { query: "extension of Lena Farrow" });
      expect(found.data[0]?.content[0]?.text).toContain("6120");
    });

    test("refusals are the client's classes", async () => {
      const bytes = Buffer.from("abc");
      const { id } = await create("a.md", bytes);
      const part = await client.uploads.parts.create(id, { data: await toFile(bytes) });
      const wrong = await thrownBy(
        client.uploads.complete(id, { part_ids: [part.id], md5: md5Of(Buffer.from("abd")) }),
      );
      expect(wrong).toBeInstanceOf(OpenAI.BadRequestError);
      expect(wrong).toMatchObject({ param: "md5" });
      const more = client.uploads.parts.create(id, { data: await toFile(Buffer.from("d")) });
      expect(await thrownBy(more)).toMatchObject({ status: 400, param: "data" });
      expect((await client.uploads.cancel(id)).status).toBe("cancelled");
      const late = client.uploads.complete(id, { part_ids: [part.id] });
      expect(await thrownBy(late)).toBeInstanceOf(OpenAI.ConflictError);
      expect(await thrownBy(client.uploads.cancel("upload_nobody"))).toBeInstanceOf(OpenAI.NotFoundError);
      const huge = { filename: "a", bytes: 8_000_000_000, mime_type: "text/plain", purpose: "assistants" } as const;
      expect(await thrownBy(client.uploads.create(huge))).toMatchObject({ status: 400, param: "bytes" });
    });
  });
}

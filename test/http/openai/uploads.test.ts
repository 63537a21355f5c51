/** /v1/uploads over HTTP: shapes, what is refused by name, and what one tenant may hold at the same time. */
import { afterAll, beforeAll, expect, test } from "bun:test";
import { corpusLimits } from "../../../gateway/corpus/base/limits.ts";
import { call, createStoreApp, form, type StoreApp } from "../store-app.ts";

let it: StoreApp;
let key = "";
beforeAll(() => {
  it = createStoreApp();
  key = it.tenant("acme").key;
});
afterAll(() => it.world.remove());

const request = { bytes: 3, filename: "a.txt", mime_type: "text/plain", purpose: "assistants" };
const post = (path: string, body?: unknown) => call(it.app, key, "POST", `/v1/uploads${path}`, body);
const partOf = (data: string | Blob): FormData => {
  const body = new FormData();
  body.set("data", typeof data === "string" ? new File([data], "blob") : data);
  return body;
};
const paramOf = (body: unknown): string | null => (body as { error: { param: string | null } }).error.param;

test("shapes of an upload, of a part, and of the file that it becomes", async () => {
  const upload = await post("", request);
  const { id } = upload;
  const { created_at: at, ...rest } = upload.body as { created_at: number; expires_at: number };
  expect(rest).toEqual({
    ...{ id, object: "upload", bytes: 3, filename: "a.txt", purpose: "assistants" },
    ...{ expires_at: at + 3_600, status: "pending", file: null },
  } as never);
  const part = await post(`/${id}/parts`, partOf("abc"));
  expect(part.body).toMatchObject({ object: "upload.part", upload_id: id });
  const done = await post(`/${id}/complete`, { part_ids: [part.id], md5: null });
  const { file } = done.body as { file: { id: string } };
  expect((await call(it.app, key, "GET", `/v1/files/${file.id}`)).body).toEqual(file);
  expect(done.body).toMatchObject({
    status: "completed",
    file: { filename: "a.txt", bytes: 3, purpose: "assistants" },
  });
  expect((await post(`/${id}/complete`, { part_ids: [part.id] })).body).toEqual(done.body);
  expect((await post(`/${id}/cancel`)).status).toBe(409);
  expect((await post(`/${id}/parts`, partOf("d"))).status).toBe(409);
  // A file that is gone is not named any more.
  await call(it.app, key, "DELETE", `/v1/files/${file.id}`);
  expect((await post(`/${id}/complete`, { part_ids: [part.id] })).body).toMatchObject({ file: null });
});

test("fields out of bounds, unknown and not supported are named", async () => {
  const cases: readonly (readonly [fields: object, param: string, code?: string])[] = [
    [{ bytes: 0 }, "bytes"],
    [{ bytes: 1.5 }, "bytes"],
    [{ bytes: "3" }, "bytes"],
    [{ bytes: corpusLimits.maxUploadBytes + 1 }, "bytes"],
    [{ bytes: undefined }, "bytes", "missing_field"],
    [{ filename: "" }, "filename"],
    [{ filename: "a\nb" }, "filename"],
    [{ filename: "x".repeat(256) }, "filename"],
    [{ mime_type: undefined }, "mime_type", "missing_field"],
    [{ mime_type: "text" }, "mime_type"],
    [{ mime_type: "a/b\r\nc" }, "mime_type"],
    [{ mime_type: `a/${"b".repeat(127)}` }, "mime_type"],
    [{ purpose: "vision" }, "purpose"],
    [{ expires_after: { anchor: "created_at", seconds: 3_599 } }, "expires_after.seconds"],
    [{ expires_after: { anchor: "last_active_at", seconds: 3_600 } }, "expires_after.anchor"],
  ];
  for (const [fields, param, code = "invalid_value"] of cases) {
    const { status, body } = await post("", { ...request, ...fields });
    expect([fields, status, (body as { error: object }).error]).toMatchObject([fields, 400, { param, code }]);
  }
  expect((await post("", { ...request, bytes: corpusLimits.maxUploadBytes })).status).toBe(200);
});

test("what is wrong with a part or with a completion is said", async () => {
  const { id } = await post("", request);
  const parts = `/${id}/parts`;
  const twice = partOf("a");
  twice.append("data", new File(["b"], "b"));
  const asText = new FormData();
  asText.set("data", "abc");
  const cases: readonly (readonly [body: unknown, status: number, param: string | null])[] = [
    [new FormData(), 400, "data"],
    [form("a.txt", "abc"), 400, "data"],
    [twice, 400, "data"],
    [asText, 400, "data"],
    [partOf("abcd"), 400, "data"],
    [partOf("x".repeat(request.bytes + corpusLimits.maxUploadOverheadBytes)), 413, null],
    [{ data: "abc" }, 415, null],
  ];
  for (const [body, wanted, param] of cases) {
    const answer = await post(parts, body);
    expect([wanted, answer.status, paramOf(answer.body)]).toEqual([wanted, wanted, param]);
  }
  const part = await post(parts, partOf("abc"));
  const completions: readonly (readonly [fields: object, param: string, status?: number])[] = [
    [{ part_ids: [] }, "part_ids"],
    [{ part_ids: undefined }, "part_ids"],
    [{ part_ids: [1] }, "part_ids[0]"],
    [{ part_ids: Array(corpusLimits.maxPartsPerUpload + 1).fill(part.id) }, "part_ids"],
    [{ part_ids: [part.id, part.id] }, "part_ids"],
    [{ part_ids: [part.id, "part_nobody"] }, "part_ids[1]", 404],
    [{ md5: "abc" }, "md5"],
    [{ md5: "0".repeat(32) }, "md5"],
  ];
  for (const [fields, param, status = 400] of completions) {
    const answer = await post(`/${id}/complete`, { part_ids: [part.id], ...fields });
    expect([param, answer.status, paramOf(answer.body)]).toEqual([param, status, param]);
  }
  expect((await post(`/${id}/cancel`, { reason: "none" })).status).toBe(400);
  expect((await post(`/${id}/cancel`)).body).toMatchObject({ status: "cancelled", file: null });
});

test("parts that are still coming have their number, which uploads of files share", async () => {
  const { id } = await post("", request);
  const controllers: ReadableStreamDefaultController<Uint8Array>[] = [];
  const slow = () =>
    it.app.request(`/v1/uploads/${id}/parts`, {
      method: "POST",
      headers: { authorization: `Bearer ${key}`, "content-type": "multipart/form-data; boundary=x" },
      body: new ReadableStream<Uint8Array>({ start: (controller) => void controllers.push(controller) }),
    });
  const open = [slow(), slow()];
  expect((await post(`/${id}/parts`, partOf("abc"))).status).toBe(429);
  expect((await call(it.app, key, "POST", "/v1/files", form("a.txt", "A."))).status).toBe(429);
  for (const controller of controllers) controller.close();
  expect((await Promise.all(open)).map((response) => response.status)).toEqual([400, 400]);
  expect((await post(`/${id}/parts`, partOf("abc"))).status).toBe(200);
});

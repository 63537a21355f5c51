/** Who is signed in, and signing in and out. */
import { computed, signal } from "@preact/signals";
import { ApiFailure, call, get, messageOf } from "./api.ts";
import { remember, remembered } from "./remembered.ts";
import { whenSessionEnds } from "./session-ended.ts";

export interface Session {
  readonly key_id: string;
  readonly tenant_id: string | null;
  readonly tenant_name: string | null;
  readonly scopes: readonly string[];
  /** Unix time in seconds. */
  readonly expires_at: number | null;
}

/** Whose eyes a page is for. One who signs in can be several. */
export type Role = "member" | "tenant admin" | "operator";

/** undefined: nobody has asked the server yet; null: nobody is signed in. */
export const session = signal<Session | null | undefined>(undefined);
/** Why nobody is signed in any more. */
export const endedBecause = signal("");

export const roles = computed<readonly Role[]>(() => (session.value ? rolesOf(session.value) : []));

export function rolesOf({ tenant_id, scopes }: Session): readonly Role[] {
  const found: Role[] = [];
  if (tenant_id !== null) found.push("member");
  if (tenant_id !== null && scopes.includes("tenant:admin")) found.push("tenant admin");
  if (scopes.includes("platform:admin") || scopes.includes("platform:read")) found.push("operator");
  return found;
}

export const may = (scope: string): boolean => session.value?.scopes.includes(scope) ?? false;

/** Remembered so that a first visit does not ask for a session that cannot be there. */
const mark = "signed-in";

export async function lookForSession(): Promise<void> {
  whenSessionEnds((why) => {
    // Of several requests the first says why: the others may have been sent without the cookie, which is gone then.
    if (session.value === null) return;
    endedBecause.value = why;
    session.value = null;
    remember(mark, "");
  });
  if (remembered(mark) === "") {
    session.value = null;
    return;
  }
  try {
    session.value = await get<Session>("/admin/v1/session");
  } catch (error) {
    if (!(error instanceof ApiFailure) || error.status !== 401) endedBecause.value = messageOf(error);
    session.value = null;
  }
}

/** @throws ApiFailure */
export async function signIn(by: { readonly api_key: string } | { readonly link: string }): Promise<void> {
  session.value = await call<Session>("POST", "/admin/v1/session", { body: by });
  endedBecause.value = "";
  remember(mark, "1");
}

export async function signOut(): Promise<void> {
  await call("DELETE", "/admin/v1/session");
  session.value = null;
  remember(mark, "");
}

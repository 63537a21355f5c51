/**
 * Every page of the console, in the order of the menu. A page is one file that exports a component `Page`; it is loaded
 * when somebody goes there.
 */
import type { ComponentType } from "preact";
import type { Role } from "./kit/session.ts";

export interface PageEntry {
  /** In the address: `#/keys`. */
  readonly name: string;
  readonly title: string;
  /** Who finds it in the menu. The API decides what anybody may do, whatever stands here. */
  readonly roles: readonly Role[];
  /** One of these is needed as well, since a key can watch the platform that may not administer it. */
  readonly scopes?: readonly string[];
  /** Goes there after `g`. */
  readonly letter: string;
  readonly load: () => Promise<{ readonly Page: ComponentType }>;
}

const admins = ["platform:admin", "tenant:admin"];
const askers = ["inference", "tenant:admin", "platform:admin", "platform:read"];

export const pages: readonly PageEntry[] = [
  {
    ...{
      name: "overview",
      title: "Overview",
      roles: ["member", "tenant admin", "operator"],
      letter: "o",
      scopes: askers,
    },
    load: () => import("./pages/overview.tsx"),
  },
  {
    ...{ name: "ask", title: "Ask", roles: ["member"], letter: "a", scopes: ["inference"] },
    load: () => import("./pages/ask.tsx"),
  },
  {
    ...{ name: "corpora", title: "Corpora", roles: ["member"], letter: "c", scopes: ["corpus:read"] },
    load: () => import("./pages/corpora.tsx"),
  },
  {
    ...{ name: "query", title: "Query", roles: ["member"], letter: "q", scopes: ["inference"] },
    load: () => import("./pages/query.tsx"),
  },
  {
    ...{ name: "cache", title: "Cache", roles: ["tenant admin", "operator"], letter: "h" },
    load: () => import("./pages/cache.tsx"),
  },
  {
    ...{ name: "tenants", title: "Tenants", roles: ["operator"], letter: "t", scopes: ["platform:admin"] },
    load: () => import("./pages/tenants.tsx"),
  },
  {
    ...{ name: "keys", title: "API keys", roles: ["tenant admin", "operator"], letter: "k", scopes: admins },
    load: () => import("./pages/keys.tsx"),
  },
  {
    ...{ name: "limits", title: "Limits", roles: ["tenant admin", "operator"], letter: "i", scopes: admins },
    load: () => import("./pages/limits.tsx"),
  },
  {
    ...{ name: "usage", title: "Usage", roles: ["tenant admin", "operator"], letter: "u" },
    load: () => import("./pages/usage.tsx"),
  },
  {
    ...{ name: "audit", title: "Audit log", roles: ["tenant admin", "operator"], letter: "l" },
    load: () => import("./pages/audit.tsx"),
  },
  {
    ...{ name: "workers", title: "Workers", roles: ["operator"], letter: "w" },
    load: () => import("./pages/workers.tsx"),
  },
];

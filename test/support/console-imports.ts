/** The rows of the import table that are about the console. */
export const consoleImports: Readonly<Record<string, readonly string[]>> = {
  // The page that browsers load: bundled, and served with its files.
  "gateway/console": ["places"],
  "gateway/console/client": ["gateway/console/client"],
  "gateway/console/client/kit": ["gateway/client/sse.ts"],
  "gateway/console/client/style": [],
  "gateway/console/client/administration": ["gateway/console/client/kit"],
  "gateway/console/client/answers": ["gateway/console/client/kit"],
  "gateway/console/client/corpora": ["gateway/console/client/kit"],
  "gateway/console/client/query": ["gateway/console/client/kit"],
  "gateway/console/client/traces": ["gateway/console/client/kit", "gateway/console/client/answers"],
  "gateway/console/client/cache": ["gateway/console/client/kit", "gateway/console/client/corpora"],
  "gateway/console/client/pages": ["gateway/console/client"],
};

/** All requests that are written for a route. Those of bodies.ts come to these, once for each route that reads JSON. */
import type { StallCase } from "./case.ts";
import { corpusCases } from "./corpus-cases.ts";
import { documentCases } from "./document-cases.ts";
import { generationCases } from "./generation-cases.ts";
import { operatorCases } from "./operator-cases.ts";
import { queryCases } from "./query-cases.ts";
import { schemaCases } from "./schema-cases.ts";

export const casesOfRoutes: readonly StallCase[] = [
  ...generationCases,
  ...schemaCases,
  ...queryCases,
  ...corpusCases,
  ...documentCases,
  ...operatorCases,
];

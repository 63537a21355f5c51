/** The rows of the import table for the interface to hardware and what is behind it. */
export const backendImports: Readonly<Record<string, readonly string[]>> = {
  "worker/backend": ["worker/contract", "worker/model", "worker/sample"],
  "worker/backend/cpu": ["worker/contract", "worker/model", "worker/native", "worker/backend/backend.ts"],
  "worker/backend/cuda": [
    "worker/contract",
    "worker/model",
    "worker/native/cuda",
    "worker/sample",
    "worker/attention",
    "worker/backend/backend.ts",
    "worker/backend/cuda",
  ],
  "worker/backend/cuda/weights": ["worker/model", "worker/backend/cuda/device"],
  "worker/backend/cuda/products": ["worker/model", "worker/backend/cuda/device", "worker/backend/cuda/weights"],
  "worker/backend/cuda/device": ["worker/native/cuda"],
  "worker/backend/cuda/sparse": [
    "worker/contract",
    "worker/model",
    "worker/backend/backend.ts",
    "worker/backend/cuda/device",
  ],
};

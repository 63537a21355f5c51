/*
 * NVRTC and cuBLASLt without a device, beside fake-driver.cpp. The compiler answers an ELF file that holds what it was
 * given, and refuses a source with "#error". Matrix products are computed, column-major, from what the descriptors say.
 */
#include <cstdint>
#include <cstring>
#include <map>
#include <string>
#include <vector>

typedef int32_t i32;
typedef uint64_t u64;
#define API extern "C" __attribute__((visibility("default")))
int note(const char *call, const std::string &details);
int made(int status);
int gone(int status);
static std::string text(u64 value) { return std::to_string(value); }

struct Program { std::string source, cubin, log; };
API i32 nvrtcVersion(i32 *major, i32 *minor) { *major = 13; *minor = 0; return 0; }
API const char *nvrtcGetErrorString(i32 status) { return status == 5 ? "NVRTC_ERROR_INVALID_OPTION" : "NVRTC_ERROR_OTHER"; }
API i32 nvrtcCreateProgram(Program **out, const char *source, const char *name, i32 count, const char **headers, const char **names) {
  *out = new Program{source, "", ""};
  std::string details = name;
  for (i32 i = 0; i < count; i++) details += std::string(" ") + names[i] + "=" + headers[i];
  return note("nvrtcCreateProgram", details);
}
API i32 nvrtcCompileProgram(Program *program, i32 count, const char **options) {
  std::string details;
  for (i32 i = 0; i < count; i++) details += std::string(i == 0 ? "" : " ") + options[i];
  int status = note("nvrtcCompileProgram", details);
  if (program->source.find("#error") != std::string::npos) { program->log = "fake.cu(1): error: on purpose"; return 6; }
  if (status != 0) program->log = "what the compiler said";
  program->cubin = std::string(64, '\0') + program->source;
  memcpy(&program->cubin[0], "\x7f" "ELF", 4);
  u64 end = program->cubin.size();
  memcpy(&program->cubin[40], &end, 8);
  return status;
}
API i32 nvrtcGetProgramLogSize(Program *program, u64 *out) { *out = program->log.size() + 1; return 0; }
API i32 nvrtcGetProgramLog(Program *program, char *out) { strcpy(out, program->log.c_str()); return 0; }
API i32 nvrtcGetCUBINSize(Program *program, u64 *out) { *out = program->cubin.size(); return 0; }
API i32 nvrtcGetCUBIN(Program *program, char *out) { memcpy(out, program->cubin.data(), program->cubin.size()); return 0; }
API i32 nvrtcDestroyProgram(Program **program) { delete *program; *program = nullptr; return note("nvrtcDestroyProgram", ""); }

struct Layout { i32 type; u64 rows, columns; int64_t stride; };
struct Description {
  i32 compute, scale;
  i32 transposed_a = 0, transposed_b = 0;
  /* Of A, then of B: float32 numbers, and what shares one. */
  u64 scales[2] = {};
  i32 modes[2] = {};
};
static int live_descriptors = 0;
static std::map<i32, u64> preferences;
API i32 fake_live_descriptors() { return live_descriptors; }

API u64 cublasLtGetVersion() { return 130000; }
API const char *cublasLtGetStatusName(i32 status) { return status == 15 ? "CUBLAS_STATUS_NOT_SUPPORTED" : "CUBLAS_STATUS_OTHER"; }
API const char *cublasLtGetStatusString(i32) { return "the library's words"; }
API i32 cublasLtCreate(void **out) { *out = (void *)0x7000; return made(note("cublasLtCreate", "")); }
API i32 cublasLtDestroy(void *) { return gone(note("cublasLtDestroy", "")); }
API i32 cublasLtMatrixLayoutCreate(Layout **out, i32 type, u64 rows, u64 columns, int64_t stride) {
  *out = new Layout{type, rows, columns, stride};
  live_descriptors++;
  return 0;
}
API i32 cublasLtMatrixLayoutDestroy(Layout *layout) { delete layout; live_descriptors--; return 0; }
API i32 cublasLtMatmulDescCreate(Description **out, i32 compute, i32 scale) {
  *out = new Description{compute, scale};
  live_descriptors++;
  return compute == 68 && scale == 0 ? 0 : 7;
}
API i32 cublasLtMatmulDescSetAttribute(Description *description, i32 attribute, const void *value, u64 bytes) {
  if (attribute == 3 && bytes == 4) memcpy(&description->transposed_a, value, 4);
  else if (attribute == 4 && bytes == 4) memcpy(&description->transposed_b, value, 4);
  else if ((attribute == 17 || attribute == 18) && bytes == 8) memcpy(&description->scales[attribute - 17], value, 8);
  else if ((attribute == 31 || attribute == 32) && bytes == 4) memcpy(&description->modes[attribute - 31], value, 4);
  else return 7;
  return 0;
}
API i32 cublasLtMatmulDescDestroy(Description *description) { delete description; live_descriptors--; return 0; }
API i32 cublasLtMatmulPreferenceCreate(void **out) { *out = (void *)0x7100; live_descriptors++; return 0; }
API i32 cublasLtMatmulPreferenceSetAttribute(void *, i32 attribute, const void *value, u64 bytes) {
  u64 number = 0;
  memcpy(&number, value, bytes);
  preferences[attribute] = number;
  return bytes == (attribute == 1 ? 8u : 4u) ? 0 : 7;
}
API i32 cublasLtMatmulPreferenceDestroy(void *) { live_descriptors--; return 0; }

struct Result { u64 algorithm[8]; u64 workspace; i32 status; float waves; i32 reserved[4]; };
/* Three answers, of which the first cannot be used; an algorithm is its number. */
API i32 cublasLtMatmulAlgoGetHeuristic(void *, Description *, Layout *a, Layout *, Layout *, Layout *, void *, i32 wanted,
                                       Result *results, i32 *count) {
  std::string details = text(wanted);
  for (auto &preference : preferences) details += " " + text(preference.first) + "=" + text(preference.second);
  int status = note("cublasLtMatmulAlgoGetHeuristic", details);
  *count = a->rows == 13 ? 1 : 3;
  for (i32 i = 0; i < *count; i++) {
    results[i] = Result{{(u64)(100 + i)}, 0, i == 0 ? 15 : 0, 1.0f, {}};
  }
  return status;
}
static double element(u64 address, i32 type, u64 index) {
  if (type == 0) return ((float *)address)[index];
  if (type == 28) { /* e4m3, of normal numbers */
    uint8_t byte = ((uint8_t *)address)[index];
    double size = (8 + (byte & 7)) / 8.0;
    for (i32 power = (byte >> 3 & 15) - 7; power != 0; power += power < 0 ? 1 : -1) size *= power < 0 ? 0.5 : 2;
    return (byte & 127) == 0 ? 0 : byte & 128 ? -size : size;
  }
  uint32_t bits = (uint32_t)((uint16_t *)address)[index] << 16;
  float value;
  memcpy(&value, &bits, 4);
  return value;
}
static void store(u64 address, i32 type, u64 index, double value) {
  float single = (float)value;
  if (type == 0) { ((float *)address)[index] = single; return; }
  uint32_t bits;
  memcpy(&bits, &single, 4);
  ((uint16_t *)address)[index] = (uint16_t)((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}
/* The scale of element k of the dot products of column `column` of A^T or B. */
static double scale_of(const Description *d, i32 operand, u64 column, u64 k, u64 inner, u64 columns) {
  const float *scales = (const float *)d->scales[operand];
  switch (d->modes[operand]) {
    case 0: return 1;
    case 3: return scales[column];                                                         /* OUTER_VEC_32F */
    case 4: return scales[k / 128 * columns + column];                                     /* VEC128_32F */
    case 5: return scales[column / 128 * (((inner + 127) / 128 + 3) / 4 * 4) + k / 128]; /* BLK128x128_32F */
  }
  return 0;
}
/* D = alpha op(A) op(B) + beta C; column-major. */
API i32 cublasLtMatmul(void *handle, Description *d, const float *alpha, u64 a, Layout *al, u64 b, Layout *bl, const float *beta,
                       u64 c, Layout *cl, u64 out, Layout *dl, const u64 *algorithm, u64 workspace, u64 workspace_bytes, void *) {
  int status = note("cublasLtMatmul", text(algorithm[0]) + " " + text(workspace_bytes) + " " + text(workspace != 0));
  if (status != 0 || handle != (void *)0x7000) return status != 0 ? status : 7;
  u64 inner = d->transposed_a ? al->rows : al->columns;
  if ((d->transposed_b ? bl->columns : bl->rows) != inner) return 7;
  if ((d->transposed_a ? al->columns : al->rows) != dl->rows || (d->transposed_b ? bl->rows : bl->columns) != dl->columns) return 7;
  for (u64 column = 0; column < dl->columns; column++) for (u64 row = 0; row < dl->rows; row++) {
    double sum = 0;
    for (u64 k = 0; k < inner; k++) {
      u64 in_a = d->transposed_a ? k + row * al->stride : row + k * al->stride;
      u64 in_b = d->transposed_b ? column + k * bl->stride : k + column * bl->stride;
      double scales = scale_of(d, 0, row, k, inner, dl->rows) * scale_of(d, 1, column, k, inner, dl->columns);
      sum += scales * element(a, al->type, in_a) * element(b, bl->type, in_b);
    }
    sum *= *alpha;
    if (*beta != 0) sum += *beta * element(c, cl->type, row + column * cl->stride);
    store(out, dl->type, row + column * dl->stride, sum);
  }
  return 0;
}

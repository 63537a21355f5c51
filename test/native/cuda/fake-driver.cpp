/*
 * A CUDA driver without a device, for tests of worker/native/cuda: device memory is host memory, work runs when it is
 * put into a stream (or into a graph while the stream records). Every call is noted; any call can be made to fail.
 */
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <list>
#include <map>
#include <string>
#include <vector>

typedef int32_t i32;
typedef uint64_t u64;
#define API extern "C" __attribute__((visibility("default")))

static std::string notes;
/* Of a call: which of its further runs fails, every one if 0, and with which status. */
struct Failure { int run, status; };
static std::map<std::string, Failure> failures;
static int version = 13000, device_count = 2, capability = 90, pending_queries = 0;
static u64 live_bytes = 0, free_bytes = 100ull << 30;
/* Contexts, streams, events, modules and handles that were made and not given back. */
static int live_objects = 0;

/* One line for a call; answers the status that the test asked for. */
int note(const char *call, const std::string &details) {
  notes += std::string(call) + (details.empty() ? "" : " " + details) + "\n";
  auto failure = failures.find(call);
  if (failure == failures.end()) return 0;
  const auto [run, status] = failure->second;
  if (run == 0) return status;
  if (run > 1) return failure->second.run--, 0;
  failures.erase(failure);
  return status;
}
/* What a call that makes something answers, and one that gives it back. */
int made(int status) { live_objects += status == 0; return status; }
int gone(int status) { live_objects--; return status; }
static std::string text(u64 value) { return std::to_string(value); }

API const char *fake_notes() { return notes.c_str(); }
API void fake_reset() { notes.clear(); failures.clear(); version = 13000; device_count = 2; capability = 90; pending_queries = 0; free_bytes = 100ull << 30; }
API void fake_fail(const char *call, i32 status, i32 run) { failures[call] = {run, status}; }
API void fake_set_capability(i32 value) { capability = value; }
API void fake_set_free_bytes(u64 value) { free_bytes = value; }
API i32 fake_live_objects() { return live_objects; }
API void fake_set_version(i32 value) { version = value; }
API void fake_set_device_count(i32 value) { device_count = value; }
API void fake_set_pending_queries(i32 value) { pending_queries = value; }
API u64 fake_live_bytes() { return live_bytes; }

API i32 cuInit(uint32_t) { return note("cuInit", ""); }
API i32 cuDriverGetVersion(i32 *out) { *out = version; return 0; }
API i32 cuGetErrorName(i32 status, const char **out) {
  *out = status == 2 ? "CUDA_ERROR_OUT_OF_MEMORY" : status == 100 ? "CUDA_ERROR_NO_DEVICE" : status == 1 ? "CUDA_ERROR_INVALID_VALUE" : nullptr;
  return *out == nullptr ? 1 : 0;
}
API i32 cuGetErrorString(i32 status, const char **out) {
  *out = status == 2 ? "out of memory" : status == 100 ? "no CUDA-capable device is detected" : nullptr;
  return *out == nullptr ? 1 : 0;
}
API i32 cuDeviceGetCount(i32 *out) { *out = device_count; return note("cuDeviceGetCount", ""); }
/* The handle is not the index, so that nobody takes one for the other. */
API i32 cuDeviceGet(i32 *out, i32 index) { *out = 70 + index; return note("cuDeviceGet", text(index)); }
API i32 cuDeviceGetName(char *name, i32 length, i32 device) { return strncpy(name, device == 71 ? "Fake 1" : "Fake 0", length) == nullptr; }
API i32 cuDeviceGetAttribute(i32 *out, i32 attribute, i32 device) {
  const std::map<int, int> values = {{1, 1024}, {16, 132}, {38, 60 << 20}, {39, 2048}, {75, capability / 10}, {76, capability % 10},
                                     {81, 233472}, {97, capability == 89 ? 101376 : 232448}};
  auto value = values.find(attribute);
  if (value == values.end() || device < 70) return 1;
  *out = value->second;
  return 0;
}
API i32 cuDeviceTotalMem_v2(u64 *out, i32 device) { *out = (u64)(141 - (device - 70)) << 30; return device < 70; }
API i32 cuDevicePrimaryCtxRetain(void **out, i32 device) { *out = (void *)(u64)(0xc000 + device); return made(note("cuDevicePrimaryCtxRetain", text(device))); }
API i32 cuDevicePrimaryCtxRelease_v2(i32 device) { return gone(note("cuDevicePrimaryCtxRelease_v2", text(device))); }
API i32 cuCtxSetCurrent(void *context) { return note("cuCtxSetCurrent", text((u64)context - 0xc000)); }
API i32 cuMemGetInfo_v2(u64 *free_out, u64 *total) { *free_out = free_bytes; *total = 141ull << 30; return 0; }

/* The map keeps what it was made of: address, extents, bytes of a row, box, swizzle. */
API i32 cuTensorMapEncodeTiled(u64 *map, i32, uint32_t, u64 address, const u64 *extents, const u64 *strides,
                               const uint32_t *box, const uint32_t *, i32, i32 swizzle, i32, i32) {
  if ((u64)map % 64 != 0 || address % 16 != 0 || strides[0] % 16 != 0 || box[1] > 256) return 1;
  const u64 words[] = {address, extents[0], extents[1], strides[0], box[0], box[1], (u64)swizzle};
  memcpy(map, words, sizeof words);
  return note("cuTensorMapEncodeTiled", "");
}

struct Allocation { void *memory; u64 bytes; bool on_device; };
static std::map<u64, Allocation> allocations;
/* Aligned as the driver's; the bytes hold no zeros, as fresh memory need not. */
API i32 cuMemAlloc_v2(u64 *out, u64 bytes) {
  int status = note("cuMemAlloc_v2", text(bytes));
  if (status == 0 && bytes > free_bytes) status = 2;
  if (status != 0) return status;
  void *memory = aligned_alloc(512, (bytes + 511) / 512 * 512);
  memset(memory, 0xa5, bytes);
  allocations[(u64)memory] = {memory, bytes, true};
  live_bytes += bytes;
  free_bytes -= bytes;
  *out = (u64)memory;
  return 0;
}
API i32 cuMemFree_v2(u64 address) {
  auto found = allocations.find(address);
  if (found == allocations.end()) return 1;
  live_bytes -= found->second.bytes;
  if (found->second.on_device) free_bytes += found->second.bytes;
  free(found->second.memory);
  allocations.erase(found);
  return note("cuMemFree_v2", "");
}
API i32 cuMemHostAlloc(void **out, u64 bytes, uint32_t flags) {
  int status = note("cuMemHostAlloc", text(bytes) + " " + text(flags));
  if (status != 0) return status;
  *out = aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
  memset(*out, 0xa5, bytes);
  live_bytes += bytes;
  allocations[(u64)*out] = {*out, bytes, false};
  return 0;
}
API i32 cuMemFreeHost(void *memory) { return cuMemFree_v2((u64)memory); }

typedef std::vector<std::function<void()>> Work;
struct Stream { Work *recording = nullptr; };
static void put(Stream *stream, std::function<void()> work) {
  if (stream->recording != nullptr) stream->recording->push_back(work);
  else work();
}
static int copy(const char *call, void *target, const void *source, u64 bytes, Stream *stream) {
  int status = note(call, text(bytes));
  if (status == 0) put(stream, [=] { memcpy(target, source, bytes); });
  return status;
}
API i32 cuMemcpyHtoDAsync_v2(u64 target, const void *source, u64 bytes, Stream *stream) { return copy("cuMemcpyHtoDAsync_v2", (void *)target, source, bytes, stream); }
API i32 cuMemcpyDtoHAsync_v2(void *target, u64 source, u64 bytes, Stream *stream) { return copy("cuMemcpyDtoHAsync_v2", target, (void *)source, bytes, stream); }
API i32 cuMemsetD8Async(u64 target, uint8_t value, u64 bytes, Stream *stream) {
  int status = note("cuMemsetD8Async", text(value) + " " + text(bytes));
  if (status == 0) put(stream, [=] { memset((void *)target, value, bytes); });
  return status;
}

API i32 cuStreamCreateWithPriority(Stream **out, uint32_t flags, i32) { *out = new Stream; return made(note("cuStreamCreateWithPriority", text(flags))); }
API i32 cuStreamDestroy_v2(Stream *stream) { delete stream; return gone(note("cuStreamDestroy_v2", "")); }
API i32 cuStreamSynchronize(Stream *stream) { return stream->recording != nullptr ? 900 : note("cuStreamSynchronize", ""); }
API i32 cuStreamWaitEvent(Stream *stream, u64 *, uint32_t) { return stream->recording != nullptr ? 900 : note("cuStreamWaitEvent", ""); }
API i32 cuStreamBeginCapture_v2(Stream *stream, i32 mode) {
  int status = note("cuStreamBeginCapture_v2", text(mode));
  if (status == 0) stream->recording = new Work;
  return status;
}
static int live_graphs = 0;
API i32 fake_live_graphs() { return live_graphs; }
API i32 cuStreamEndCapture(Stream *stream, Work **out) {
  *out = stream->recording;
  stream->recording = nullptr;
  int status = note("cuStreamEndCapture", "");
  if (status != 0) { delete *out; *out = nullptr; } else live_graphs++;
  return status;
}
API i32 cuGraphInstantiateWithFlags(Work **out, Work *graph, u64 flags) {
  int status = note("cuGraphInstantiateWithFlags", text(flags));
  if (status == 0) { *out = new Work(*graph); live_graphs++; }
  return status;
}
API i32 cuGraphUpload(Work *, Stream *) { return note("cuGraphUpload", ""); }
API i32 cuGraphLaunch(Work *graph, Stream *) {
  for (auto &work : *graph) work();
  return note("cuGraphLaunch", "");
}
API i32 cuGraphDestroy(Work *graph) { delete graph; live_graphs--; return note("cuGraphDestroy", ""); }
API i32 cuGraphExecDestroy(Work *graph) { delete graph; live_graphs--; return note("cuGraphExecDestroy", ""); }

API i32 cuEventCreate(u64 **out, uint32_t flags) { *out = new u64(flags); return made(note("cuEventCreate", text(flags))); }
API i32 cuEventRecord(u64 *, Stream *) { return note("cuEventRecord", ""); }
API i32 cuEventQuery(u64 *) { return pending_queries-- > 0 ? 600 : note("cuEventQuery", ""); }
API i32 cuEventDestroy_v2(u64 *event) { delete event; return gone(note("cuEventDestroy_v2", "")); }

/* Every module has all kernels: "mixed" has a parameter of every kind, "increment" adds 1 to `count` integers; the rest do nothing. */
struct Kernel { std::string name; std::vector<u64> sizes; int max_shared; };
static std::list<Kernel> kernels = {{"mixed", {8, 4, 4, 4, 8, 8, 20, 8}, 49152}, {"increment", {8, 4}, 49152}, {"nothing", {}, 49152}};
API void fake_add_kernel(const char *name, const u64 *sizes, i32 count) { kernels.push_back({name, {sizes, sizes + count}, 49152}); }
API i32 cuModuleLoadData(void **out, const uint8_t *image) { *out = (void *)0x5000; return made(note("cuModuleLoadData", text(image[0]))); }
API i32 cuModuleUnload(void *) { return gone(note("cuModuleUnload", "")); }
API i32 cuModuleGetFunction(Kernel **out, void *module, const char *name) {
  for (auto &kernel : kernels) if (module == (void *)0x5000 && kernel.name == name) { *out = &kernel; return 0; }
  return 500;
}
API i32 cuFuncGetAttribute(i32 *out, i32 attribute, Kernel *kernel) {
  static const std::map<int, int> values = {{0, 512}, {1, 1024}, {3, 16}, {4, 40}};
  *out = attribute == 8 ? kernel->max_shared : values.at(attribute);
  return 0;
}
API i32 cuFuncSetAttribute(Kernel *kernel, i32 attribute, i32 value) {
  return note("cuFuncSetAttribute", kernel->name + " " + text(attribute) + " " + text(value));
}
API i32 cuFuncGetParamInfo(Kernel *kernel, u64 index, u64 *, u64 *size) {
  if (index >= kernel->sizes.size()) return 1;
  *size = kernel->sizes[index];
  return 0;
}
API i32 cuLaunchKernel(Kernel *kernel, uint32_t gx, uint32_t gy, uint32_t gz, uint32_t bx, uint32_t by, uint32_t bz,
                       uint32_t shared, Stream *stream, void **params, void **extra) {
  std::string details = kernel->name;
  for (u64 value : {gx, gy, gz, bx, by, bz, shared}) details += " " + text(value);
  std::vector<std::vector<uint8_t>> values;
  for (size_t i = 0; i < kernel->sizes.size(); i++) {
    values.emplace_back((uint8_t *)params[i], (uint8_t *)params[i] + kernel->sizes[i]);
    details += i == 0 ? " : " : " | ";
    for (uint8_t byte : values.back()) { char hex[3]; snprintf(hex, 3, "%02x", byte); details += hex; }
  }
  int status = note("cuLaunchKernel", details);
  if (status != 0 || extra != nullptr) return status != 0 ? status : 1;
  if (kernel->name == "increment") put(stream, [values] {
    i32 *data; i32 count;
    memcpy(&data, values[0].data(), 8);
    memcpy(&count, values[1].data(), 4);
    for (i32 i = 0; i < count; i++) data[i]++;
  });
  else put(stream, [] {});
  return 0;
}

/* cuda.h's, as far as launches with one attribute use it. */
struct LaunchAttribute { uint32_t id; char pad[4]; i32 value; char rest[60]; };
struct LaunchConfig { uint32_t grid[3], block[3], shared; Stream *stream; LaunchAttribute *attributes; uint32_t attribute_count; };
static_assert(sizeof(LaunchAttribute) == 72 && sizeof(LaunchConfig) == 56, "layout of cuda.h");
API i32 cuLaunchKernelEx(const LaunchConfig *config, Kernel *kernel, void **params, void **extra) {
  std::string details;
  for (uint32_t i = 0; i < config->attribute_count; i++)
    details += text(config->attributes[i].id) + "=" + text(config->attributes[i].value) + " ";
  int status = note("cuLaunchKernelEx", details);
  if (status != 0) return status;
  const uint32_t *grid = config->grid, *block = config->block;
  return cuLaunchKernel(kernel, grid[0], grid[1], grid[2], block[0], block[1], block[2], config->shared, config->stream, params, extra);
}

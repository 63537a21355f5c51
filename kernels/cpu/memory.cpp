#include "memory.h"

#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include <new>
#include <vector>

namespace spg {

void *map_zero_pages(size_t bytes, bool huge) {
  void *data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (data == MAP_FAILED) return nullptr;
#ifdef MADV_HUGEPAGE
  if (huge) madvise(data, bytes, MADV_HUGEPAGE);
#else
  (void)huge;
#endif
  return data;
}

void unmap_pages(void *data, size_t bytes) {
  if (data) munmap(data, bytes);
}

int64_t resident_bytes(void *data, size_t bytes) {
  const size_t pageBytes = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  std::vector<unsigned char> flags((bytes + pageBytes - 1) / pageBytes);
#ifdef __linux__
  if (mincore(data, bytes, flags.data()) != 0) return -1;
#else
  if (mincore(static_cast<char *>(data), bytes, reinterpret_cast<char *>(flags.data())) != 0) return -1;
#endif
  int64_t resident = 0;
  for (unsigned char flag : flags) resident += flag & 1;
  return resident * static_cast<int64_t>(pageBytes);
}

FloatBuffer::~FloatBuffer() {
  free(data_);
}

void FloatBuffer::reserve(size_t floats) {
  if (floats <= capacity_) return;
  free(data_);
  data_ = nullptr;
  capacity_ = 0;
  const size_t rounded = (floats + 15) / 16 * 16;
  data_ = static_cast<float *>(aligned_alloc(64, rounded * sizeof(float)));
  if (!data_) throw std::bad_alloc();
  capacity_ = rounded;
}

}

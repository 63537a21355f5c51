/* Where the library's memory comes from. */
#ifndef SPANGATE_KERNELS_MEMORY_H
#define SPANGATE_KERNELS_MEMORY_H

#include <stddef.h>
#include <stdint.h>

namespace spg {

/* Anonymous zero pages, on huge pages where `huge`; nullptr when there is no room. */
void *map_zero_pages(size_t bytes, bool huge);
void unmap_pages(void *data, size_t bytes);
/* How much of a mapping is in memory now; -1 when the system does not say. */
int64_t resident_bytes(void *data, size_t bytes);

/* Floats on a cache line's start that only ever grow; not initialised. */
class FloatBuffer {
 public:
  FloatBuffer() = default;
  ~FloatBuffer();
  FloatBuffer(const FloatBuffer &) = delete;
  FloatBuffer &operator=(const FloatBuffer &) = delete;

  /* Throws std::bad_alloc. What was in it is lost when it grows. */
  void reserve(size_t floats);
  float *data() const { return data_; }

 private:
  float *data_ = nullptr;
  size_t capacity_ = 0;
};

}

#endif

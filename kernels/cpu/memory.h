/* Where the library's memory comes from. */
#ifndef SPANGATE_KERNELS_MEMORY_H
#define SPANGATE_KERNELS_MEMORY_H

#include <stddef.h>
#include <stdint.h>

namespace spg {

/* Maps anonymous zero pages, on huge pages if `huge`; nullptr when there is not enough memory. */
void *map_zero_pages(size_t bytes, bool huge);
void unmap_pages(void *data, size_t bytes);
/* Bytes of a mapping that are in memory now; -1 when the system does not tell. */
int64_t resident_bytes(void *data, size_t bytes);

/* An array of floats, aligned to a cache line, that only ever grows; its contents are not initialised. */
class FloatBuffer {
 public:
  FloatBuffer() = default;
  ~FloatBuffer();
  FloatBuffer(const FloatBuffer &) = delete;
  FloatBuffer &operator=(const FloatBuffer &) = delete;

  /* Throws std::bad_alloc. Growing loses the contents. */
  void reserve(size_t floats);
  float *data() const { return data_; }

 private:
  float *data_ = nullptr;
  size_t capacity_ = 0;
};

}

#endif

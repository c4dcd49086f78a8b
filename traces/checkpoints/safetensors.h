// Files of tensors in the safetensors format (github.com/huggingface/safetensors, "Format"):
//
//   8 bytes            the length n of the header, little-endian
//   n bytes            the header, JSON: {"name": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]},
//                      "__metadata__": {"key": "text"}}, filled up with spaces
//   the rest           the tensors, row by row, little-endian, at their offsets from here on
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "shared/base/dtype.h"
#include "traces/checkpoints/data_file.h"

namespace cp {

struct FileTensor {
  std::string name;
  DType dtype = DType::f32;
  std::vector<std::int64_t> shape;
  std::int64_t offset = 0;  // in bytes, behind the header

  std::int64_t numel() const;
  std::int64_t bytes() const { return numel() * size_bytes(dtype); }
};

struct FileLayout {
  std::vector<FileTensor> tensors;
  std::int64_t data = 0;   // where tensors begin in the file
  std::int64_t bytes = 0;  // of the whole file
};

// Gives the tensors places one behind the other. Returns the header, all bytes before the tensors.
std::string begin_safetensors(std::vector<FileTensor> tensors,
                              const std::map<std::string, std::string>& metadata, FileLayout& layout);

// Reads the header of a file. Throws InvalidInput that names the file if it is none of this format, if
// tensors overlap, reach beyond its end or have another size than their shape, or are of a dtype that no
// tensor here has. Tensors of integers of other sizes than i32 and i64, of f64 and of 8 bits are such.
FileLayout read_safetensors_header(const DataFile& file);

}  // namespace cp

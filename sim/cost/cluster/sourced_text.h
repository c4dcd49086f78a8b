// The sourced fields of a preset's text (sim/cost/cluster/quantity.proto) by their paths, "gpu.hbm_gbps" or
// "attention[2].tflops": read with errors at their place, and written. For the readers of clusters and of
// software alone.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include <google/protobuf/message.h>

#include "sim/cost/cluster/curve.h"
#include "sim/cost/cluster/source.h"
#include "traces/read_text.h"

namespace cp::sim {

// What a number may be: in [low, high], or also 0.
struct Range {
  double low = 0, high = 0;
  bool or_zero = false;
};

// Why it may not be; empty when it may. A flag may be anything.
std::string range_error(double value, const Range& range);
inline std::string range_error(int value, const Range& range) {
  return range_error(double{1} * value, range);
}
inline std::string range_error(bool, const Range&) { return ""; }

// What is wrong with a field.
struct FieldError {
  std::string field, message;
};
// Throws InvalidInput with a line for each; returns when there is none.
void raise(std::string_view what, const std::vector<FieldError>& errors);

const Source* find_source(const std::vector<Source>& sources, std::string_view field);
void set_source(std::vector<Source>& sources, Source source);  // in the place of the one of that field
void sort_by_field(std::vector<Source>& sources);

class SourcedReader {
 public:
  // Adds to `errors` and `sources`; all must outlive this.
  SourcedReader(const google::protobuf::Message& root, const TextLocations& locations, TextErrors& errors,
                std::vector<Source>& sources)
      : root_(root), locations_(locations), errors_(errors), sources_(sources) {}

  // Where the field stands, or else the last part of its path that does; the beginning of the file if none.
  google::protobuf::TextFormat::ParseLocation place(std::string_view path) const;
  void fail(std::string_view path, const std::string& message);
  bool has(std::string_view path) const { return find(path) != nullptr; }

  // A Quantity, Flag, Choice or Curve into `out`, which stays as it is where the text has no such field, or a
  // wrong one.
  void read(std::string_view path, const Range& range, double& out);
  void read(std::string_view path, const Range& range, int& out);
  void read(std::string_view path, const Range& range, bool& out);
  void read(std::string_view path, std::string& out);
  void read(std::string_view path, Curve& out);

 private:
  const google::protobuf::Message* find(std::string_view path) const;
  // Of a Quantity, Flag, Choice or Curve.
  template <class Message>
  void take_provenance(std::string_view path, const Message& message);

  const google::protobuf::Message& root_;
  const TextLocations& locations_;
  TextErrors& errors_;
  std::vector<Source>& sources_;
};

// Throws InvalidInput for a field without a source.
class SourcedWriter {
 public:
  SourcedWriter(google::protobuf::Message& root, const std::vector<Source>& sources)
      : root_(root), sources_(sources) {}

  void write(std::string_view path, double value);
  void write(std::string_view path, bool value);
  void write(std::string_view path, const std::string& value);
  void write(std::string_view path, const Curve& value);  // not an empty one

 private:
  google::protobuf::Message& make(std::string_view path) const;
  const Source& source(std::string_view path) const;

  google::protobuf::Message& root_;
  const std::vector<Source>& sources_;
};

}  // namespace cp::sim

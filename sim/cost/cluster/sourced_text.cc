#include "sim/cost/cluster/sourced_text.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <set>
#include <utility>

#include <google/protobuf/descriptor.h>

#include "shared/base/error.h"
#include "sim/cost/cluster/provenance_proto.h"
#include "sim/cost/cluster/quantity.pb.h"

namespace cp::sim {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::TextFormat;

// A part of a path: "gpu", or "attention[2]".
struct Part {
  std::string name;
  int index = -1;
};

std::vector<Part> parts_of(std::string_view path) {
  std::vector<Part> parts;
  while (!path.empty()) {
    const std::string_view part = path.substr(0, path.find('.'));
    path.remove_prefix(std::min(part.size() + 1, path.size()));
    const std::size_t bracket = part.find('[');
    const bool indexed = bracket != std::string_view::npos;
    parts.push_back({std::string(part.substr(0, bracket)),
                     indexed ? static_cast<int>(
                                   parse_int(part.substr(bracket + 1, part.size() - bracket - 2), "an index"))
                             : -1});
  }
  return parts;
}

const FieldDescriptor& field_of(const Message& message, const Part& part) {
  const FieldDescriptor* field = message.GetDescriptor()->FindFieldByName(part.name);
  CP_INVARIANT(field != nullptr, message.GetTypeName(), " has no field ", part.name);
  return *field;
}

bool holds(const Message& message, const FieldDescriptor& field, int index) {
  return field.is_repeated() ? index < message.GetReflection()->FieldSize(message, &field)
                             : message.GetReflection()->HasField(message, &field);
}

template <class Proto>
const Proto* as(const Message* message) {
  const auto* typed = dynamic_cast<const Proto*>(message);
  CP_INVARIANT(message == nullptr || typed != nullptr, message->GetTypeName(),
               " is not the type of the field");
  return typed;
}

template <class Proto>
Proto& as(Message& message) {
  return const_cast<Proto&>(*as<Proto>(static_cast<const Message*>(&message)));
}

}  // namespace

std::string range_error(double value, const Range& range) {
  if ((value >= range.low && value <= range.high) || (range.or_zero && value == 0)) return "";
  return str(value, " is not ", range.or_zero ? "0, nor " : "", "in [", range.low, ", ", range.high, "]");
}

void raise(std::string_view what, const std::vector<FieldError>& errors) {
  if (errors.empty()) return;
  std::vector<std::string> lines;
  for (const FieldError& error : errors) lines.push_back(str(what, ": ", error.field, ": ", error.message));
  throw InvalidInput(join(lines, "\n"));
}

const Source* find_source(const std::vector<Source>& sources, std::string_view field) {
  const auto found =
      std::find_if(sources.begin(), sources.end(), [&](const Source& s) { return s.field == field; });
  return found == sources.end() ? nullptr : &*found;
}

void set_source(std::vector<Source>& sources, Source source) {
  if (const Source* old = find_source(sources, source.field)) {
    sources[static_cast<std::size_t>(old - sources.data())] = std::move(source);
  } else {
    sources.push_back(std::move(source));
  }
}

void sort_by_field(std::vector<Source>& sources) {
  std::sort(sources.begin(), sources.end(),
            [](const Source& a, const Source& b) { return a.field < b.field; });
}

// ---- reading

const Message* SourcedReader::find(std::string_view path) const {
  const Message* message = &root_;
  for (const Part& part : parts_of(path)) {
    const FieldDescriptor& field = field_of(*message, part);
    if (!holds(*message, field, part.index)) return nullptr;
    const auto& reflection = *message->GetReflection();
    message = field.is_repeated() ? &reflection.GetRepeatedMessage(*message, &field, part.index)
                                  : &reflection.GetMessage(*message, &field);
  }
  return message;
}

TextFormat::ParseLocation SourcedReader::place(std::string_view path) const {
  const Message* message = &root_;
  const TextLocations* locations = &locations_;
  TextFormat::ParseLocation at;
  for (const Part& part : parts_of(path)) {
    const FieldDescriptor& field = field_of(*message, part);
    if (!holds(*message, field, part.index)) break;
    at = locations->GetLocation(&field, part.index);
    if (field.cpp_type() != FieldDescriptor::CPPTYPE_MESSAGE) break;
    locations = locations->GetTreeForNested(&field, part.index);
    if (locations == nullptr) break;
    const auto& reflection = *message->GetReflection();
    message = field.is_repeated() ? &reflection.GetRepeatedMessage(*message, &field, part.index)
                                  : &reflection.GetMessage(*message, &field);
  }
  return at;
}

void SourcedReader::fail(std::string_view path, const std::string& message) {
  errors_.add(place(path), str(path, path.empty() ? "" : ": ", message));
}

template <class Message>
void SourcedReader::take_provenance(std::string_view path, const Message& message) {
  const std::string error = provenance_error(message);
  if (!error.empty()) return fail(path, error);
  set_source(sources_, {std::string(path), provenance_of(message)});
}

void SourcedReader::read(std::string_view path, const Range& range, double& out) {
  const auto* quantity = as<proto::Quantity>(find(path));
  if (quantity == nullptr) return;
  if (!quantity->has_value()) return fail(path, str("has no value; add, for example, value: ", range.high));
  take_provenance(path, *quantity);
  const std::string error = range_error(quantity->value(), range);
  if (!error.empty()) return fail(path, error);
  out = quantity->value();
}

void SourcedReader::read(std::string_view path, const Range& range, int& out) {
  double value = out;
  read(path, range, value);
  if (value != std::floor(value))
    return fail(path, str(value, " is not a whole number; use ", std::floor(value)));
  out = static_cast<int>(value);
}

void SourcedReader::read(std::string_view path, const Range&, bool& out) {
  const auto* flag = as<proto::Flag>(find(path));
  if (flag == nullptr) return;
  if (!flag->has_value()) return fail(path, "has no value; add value: true or value: false");
  take_provenance(path, *flag);
  out = flag->value();
}

void SourcedReader::read(std::string_view path, std::string& out) {
  const auto* choice = as<proto::Choice>(find(path));
  if (choice == nullptr) return;
  if (choice->value().empty()) return fail(path, "has no value");
  take_provenance(path, *choice);
  out = choice->value();
}

void SourcedReader::read(std::string_view path, Curve& out) {
  const auto* curve = as<proto::Curve>(find(path));
  if (curve == nullptr) return;
  take_provenance(path, *curve);
  if (curve->point_size() == 0)
    return fail(path, "has no points; add, for example, point { x: 1048576 y: 46.5 }");
  std::vector<CurvePoint> points;
  std::set<double> known;
  for (int i = 0; i < curve->point_size(); ++i) {
    const CurvePoint point{curve->point(i).x(), curve->point(i).y()};
    try {
      // What a curve refuses of this point alone, and of a second one at its place.
      Curve{{point}};
      if (!known.insert(point.x).second) Curve{{point, point}};
      points.push_back(point);
    } catch (const InvalidInput& error) {
      errors_.add(place(str(path, ".point[", i, "]")), str(path, ": ", error.what()));
    }
  }
  out = Curve(std::move(points));
}

// ---- writing

Message& SourcedWriter::make(std::string_view path) const {
  Message* message = &root_;
  for (const Part& part : parts_of(path)) {
    const FieldDescriptor& field = field_of(*message, part);
    const auto& reflection = *message->GetReflection();
    if (!field.is_repeated()) {
      message = reflection.MutableMessage(message, &field);
      continue;
    }
    while (reflection.FieldSize(*message, &field) <= part.index) reflection.AddMessage(message, &field);
    message = reflection.MutableRepeatedMessage(message, &field, part.index);
  }
  return *message;
}

const Source& SourcedWriter::source(std::string_view path) const {
  const Source* found = find_source(sources_, path);
  if (found == nullptr)
    throw InvalidInput(str(path, " has no source; a preset says how each number is known"));
  return *found;
}

void SourcedWriter::write(std::string_view path, double value) {
  auto& quantity = as<proto::Quantity>(make(path));
  quantity.set_value(value);
  write_provenance(source(path).provenance, quantity);
}

void SourcedWriter::write(std::string_view path, bool value) {
  auto& flag = as<proto::Flag>(make(path));
  flag.set_value(value);
  write_provenance(source(path).provenance, flag);
}

void SourcedWriter::write(std::string_view path, const std::string& value) {
  auto& choice = as<proto::Choice>(make(path));
  choice.set_value(value);
  write_provenance(source(path).provenance, choice);
}

void SourcedWriter::write(std::string_view path, const Curve& value) {
  auto& curve = as<proto::Curve>(make(path));
  for (const CurvePoint& point : value.points()) {
    proto::Point& out = *curve.add_point();
    out.set_x(point.x);
    out.set_y(point.y);
  }
  write_provenance(source(path).provenance, curve);
}

}  // namespace cp::sim

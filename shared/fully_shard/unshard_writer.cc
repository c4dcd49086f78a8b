#include "shared/fully_shard/unshard_writer.h"

#include <algorithm>
#include <utility>
#include <variant>

#include "shared/base/error.h"
#include "shared/base/text.h"

namespace cp {

ShardedUnit flat_unit(const HsdpParam& param, Rank self) {
  const HsdpOptions& options = param.options();
  if (param.sharded().shape.size() != 1 || param.shard_axes().size() > 1 ||
      !std::holds_alternative<Chunked>(options.split)) {
    throw InvalidInput(
        str("a parameter of ", param.sharded().shape.size(), " dimensions, split ",
            placements_to_string(param.sharded()),
            ", is not a flat unit; give it one dimension and one shard axis with equal chunks"));
  }
  if (options.reduce != ReduceOp::sum) {
    throw InvalidInput(
        str("reduce=", name(options.reduce),
            " of a flat unit, whose gradients are added up; scale the loss, and use reduce=sum"));
  }
  ShardedUnit unit;
  unit.numel = local_numel(param.unsharded(), self);
  unit.ranks = param.shard_group(self), unit.replicas = param.all_reduce_group(self);
  unit.dtype = param.unsharded().dtype, unit.shard_dtype = param.sharded().dtype;
  unit.gradient_dtype = param.scattered().dtype;
  // Chunks are full from the front, so that padding at the end makes all of them equal.
  CP_INVARIANT(local_numel(param.sharded(), unit.ranks.front()) == unit.shard_numel(), "shards of ",
               unit.numel, " elements over ", unit.num_ranks(), " ranks");
  return unit;
}

UnshardWriter::UnshardWriter(PlanBuilder& builder, Rank self, ShardedUnit unit)
    : builder_(builder), unit_(std::move(unit)) {
  if (unit_.ranks.size() == 1) return;
  index_ = std::find(unit_.ranks.begin(), unit_.ranks.end(), self) - unit_.ranks.begin();
}

std::int64_t UnshardWriter::own_block() const { return index_ * unit_.shard_numel(); }

BufferId UnshardWriter::once(BufferId& buffer, BufferKind kind, const std::string& name, DType dtype,
                             std::int64_t numel) {
  if (buffer >= 0) return buffer;
  buffer = kind == BufferKind::input    ? builder_.input(name, dtype, numel)
           : kind == BufferKind::inout  ? builder_.inout(name, dtype, numel)
           : kind == BufferKind::output ? builder_.output(name, dtype, numel)
                                        : builder_.temporary(name, dtype, numel);
  return buffer;
}

// ---- parameters ----

Window UnshardWriter::unshard(StackIndex piece, StackIndex turn) {
  if (unit_.whole()) {
    const std::string name = str(unit_.resident ? unit_.resident_parameters : "parameters", "/", unit_.name);
    return in_stack(once(parameters_, BufferKind::input, name, unit_.dtype, unit_.whole_numel()),
                    unit_.whole_stride(), piece);
  }
  const std::int64_t shard = unit_.shard_numel(), padded = unit_.padded_numel();
  if (gather_group_ < 0) gather_group_ = builder_.group(unit_.group, unit_.ranks);
  const StreamId stream = builder_.stream("fsdp");
  const BufferId shards = once(parameters_, BufferKind::input, str("parameters/", unit_.name),
                               unit_.shard_dtype, unit_.pieces * shard);
  const Window place = keeps() && unit_.kept_over == 1 ? kept(piece) : slot(turn);
  View in = in_stack(shards, shard, piece).flat(0, shard);
  if (unit_.shard_dtype != unit_.dtype) {
    const View block = place.flat(own_block(), shard);
    builder_.add(stream, Cast{in, block}, "cast shard");
    in = block;
  }
  builder_.add(stream, AllGather{gather_group_, in, place.flat(0, padded)}, "unshard");
  if (keeps() && unit_.kept_over > 1) {
    const std::int64_t part = padded / unit_.kept_over;
    builder_.add(stream, Copy{place.flat(index_ % unit_.kept_over * part, part), kept(piece).flat(0, part)},
                 "keep a part");
  }
  return place;
}

Window UnshardWriter::unshard_again(StackIndex piece, StackIndex turn) {
  if (!keeps()) return unshard(piece, turn);
  if (unit_.kept_over == 1) return kept(piece);
  if (kept_group_ < 0) {
    const auto first = unit_.ranks.begin() + index_ / unit_.kept_over * unit_.kept_over;
    kept_group_ = builder_.group(unit_.group + "_kept", {first, first + unit_.kept_over});
  }
  const std::int64_t padded = unit_.padded_numel();
  const Window place = slot(turn);
  builder_.add(builder_.stream("fsdp"),
               AllGather{kept_group_, kept(piece).flat(0, padded / unit_.kept_over), place.flat(0, padded)},
               "unshard what is kept");
  return place;
}

Window UnshardWriter::slot(StackIndex turn) {
  const std::int64_t padded = unit_.padded_numel();
  const BufferId buffer = once(slots_, BufferKind::temporary, str("unsharded/", unit_.name), unit_.dtype,
                               gather_slots() * padded);
  return in_slot(buffer, padded, turn, gather_slots());
}

Window UnshardWriter::kept(StackIndex piece) {
  const std::int64_t part = unit_.padded_numel() / unit_.kept_over;
  return in_stack(once(kept_, BufferKind::temporary, str("unsharded/", unit_.name, " kept"), unit_.dtype,
                       unit_.pieces * part),
                  part, piece);
}

// ---- gradients ----

Window UnshardWriter::whole_gradients(StackIndex piece) {
  const std::string name = str(unit_.resident_sums ? unit_.resident_gradients : "gradients", "/", unit_.name);
  return in_stack(
      once(gradients_, BufferKind::inout, name, unit_.gradient_dtype, unit_.whole_gradients_numel()),
      unit_.gradient_stride(), piece);
}

GradientPlace UnshardWriter::gradient(StackIndex piece, StackIndex turn) {
  if (unit_.adds_gradients()) return {whole_gradients(piece), true};
  // If gradients are cast, the copy is what travels, and the next layer may overwrite the original. If not,
  // the original travels, and the next layer needs another slot.
  const bool whole = unit_.has_whole_gradients();
  const int count = whole || casts_gradients() ? 1 : gradient_slots();
  const std::int64_t padded = whole ? unit_.numel : unit_.padded_numel();
  const BufferId buffer = once(gradients_made_, BufferKind::temporary,
                               str("unsharded/", unit_.name, " gradients"), unit_.dtype, count * padded);
  return {in_slot(buffer, padded, turn, count), false};
}

void UnshardWriter::reduce(StackIndex piece, StackIndex turn, bool more) {
  if (!unit_.adds_gradients()) {
    const Window gradient = this->gradient(piece, turn).window;
    unit_.has_whole_gradients() ? add_to_whole(piece, gradient) : reduce_and_scatter(piece, gradient);
  }
  if (unit_.sends_gradients && !more) send_to_host(piece);
}

void UnshardWriter::reduce_and_scatter(StackIndex piece, const Window& gradient) {
  const StreamId stream = builder_.stream("fsdp_reduce");
  if (reduce_group_ < 0) reduce_group_ = builder_.group(unit_.group + "_reduce", unit_.ranks);
  const std::int64_t shard = unit_.shard_numel(), padded = unit_.padded_numel();
  Window travelling = gradient;
  if (casts_gradients()) {
    const BufferId wide = once(cast_, BufferKind::temporary, str("unsharded/", unit_.name, " cast gradients"),
                               unit_.gradient_dtype, padded);
    travelling = Window{wide, 0, {}};
    builder_.add(stream, Cast{gradient.flat(0, unit_.numel), travelling.flat(0, unit_.numel)},
                 "cast gradients");
  }
  if (padded > unit_.numel) {
    builder_.add(stream, Fill{travelling.flat(unit_.numel, padded - unit_.numel), 0}, "pad gradients");
  }
  const View block = travelling.flat(own_block(), shard);
  builder_.add(stream, ReduceScatter{reduce_group_, ReduceOp::sum, travelling.flat(0, padded), block},
               "reduce gradients");
  const BufferId sum = once(gradients_, BufferKind::inout, str("gradients/", unit_.name),
                            unit_.gradient_dtype, unit_.pieces * shard);
  builder_.add(stream, Accumulate{ReduceOp::sum, block, in_stack(sum, shard, piece).flat(0, shard)},
               "add gradients");
}

void UnshardWriter::send_to_host(StackIndex piece) {
  const std::int64_t numel = unit_.has_whole_gradients() ? unit_.numel : unit_.shard_numel(),
                     all = unit_.has_whole_gradients() ? unit_.whole_numel() : unit_.pieces * numel;
  const BufferId host = once(host_gradients_, BufferKind::output, str("host/gradients/", unit_.name),
                             unit_.gradient_dtype, all);
  builder_.add(
      builder_.stream("to_host"),
      Copy{in_stack(gradients_, numel, piece).flat(0, numel), in_stack(host, numel, piece).flat(0, numel)},
      "gradients to the host");
}

// For a gradient dtype in which products cannot accumulate: cast first, then add.
void UnshardWriter::add_to_whole(StackIndex piece, const Window& gradient) {
  const StreamId compute = builder_.stream("compute");
  const View cast =
      flat_view(once(cast_, BufferKind::temporary, str("unsharded/", unit_.name, " cast gradients"),
                     unit_.gradient_dtype, unit_.numel),
                0, unit_.numel);
  builder_.add(compute, Cast{gradient.flat(0, unit_.numel), cast}, "cast gradients");
  builder_.add(compute, Accumulate{ReduceOp::sum, cast, whole_gradients(piece).flat(0, unit_.numel)},
               "add gradients");
}

}  // namespace cp

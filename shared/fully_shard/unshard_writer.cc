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

UnshardWriter::Place UnshardWriter::place_of(StackIndex piece, StackIndex turn, bool backward) const {
  const std::int64_t bucket = unit_.bucket, last = unit_.num_buckets() - 1;
  if (bucket == 1) return {piece, 1, 0, turn};
  CP_INVARIANT(piece.step % bucket == 0, "of buckets of ", bucket, " pieces of ", unit_.name,
               " a Repeat advances by ", piece.step, " pieces");
  Place place;
  place.bucket = {piece.first / bucket, piece.step / bucket};
  place.count = unit_.pieces_of(place.bucket.first), place.position = piece.first % bucket;
  place.turn = backward ? StackIndex{last - place.bucket.first, -place.bucket.step} : place.bucket;
  return place;
}

Window UnshardWriter::piece_of(const Window& slot, const Place& place) const {
  if (place.count == 1) return slot;
  const auto begin = [&](std::int64_t element) {
    return slot.offset + unit_.in_slot(place.count, place.position, element) - element;
  };
  return {slot.buffer, begin(unit_.replicated), slot.advance, unit_.replicated, begin(0)};
}

std::int64_t UnshardWriter::own_block(std::int64_t count) const {
  return count * unit_.replicated + index_ * unit_.shard_numel(count);
}

Window UnshardWriter::owned(BufferId buffer, const Place& place) const {
  return in_stack(buffer, unit_.owned_numel(unit_.bucket), place.bucket);
}

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
  const Place place = place_of(piece, turn, /*backward=*/false);
  const Window whole = keeps() && unit_.kept_over == 1 ? kept(place) : slot(place);
  if (place.position == 0) gather(place, whole);
  return piece_of(whole, place);
}

Window UnshardWriter::unshard_again(StackIndex piece, StackIndex turn) {
  if (unit_.whole()) return unshard(piece, turn);
  const Place place = place_of(piece, turn, /*backward=*/true);
  const Window whole = keeps() && unit_.kept_over == 1 ? kept(place) : slot(place);
  if (place.position == place.count - 1 && !(keeps() && unit_.kept_over == 1))
    keeps() ? gather_kept(place, whole) : gather(place, whole);
  return piece_of(whole, place);
}

BufferId UnshardWriter::shards() {
  return once(parameters_, BufferKind::input, str("parameters/", unit_.name), unit_.shard_dtype,
              unit_.num_owned());
}

void UnshardWriter::gather(const Place& place, const Window& slot) {
  const std::int64_t replicated = place.count * unit_.replicated, shard = unit_.shard_numel(place.count),
                     padded = unit_.padded_numel(place.count);
  if (gather_group_ < 0) gather_group_ = builder_.group(unit_.group, unit_.ranks);
  const StreamId stream = builder_.stream("fsdp");
  View in = owned(shards(), place).flat(replicated, shard);
  place_replicated(place, slot);
  if (unit_.shard_dtype != unit_.dtype) {
    const View block = slot.flat(own_block(place.count), shard);
    builder_.add(stream, Cast{in, block}, "cast shard");
    in = block;
  }
  builder_.add(stream, AllGather{gather_group_, in, slot.flat(replicated, padded)}, "unshard");
  if (keeps() && unit_.kept_over > 1) {
    const std::int64_t part = padded / unit_.kept_over;
    builder_.add(
        stream,
        Copy{slot.flat(replicated + index_ % unit_.kept_over * part, part), kept(place).flat(0, part)},
        "keep a part");
  }
}

void UnshardWriter::gather_kept(const Place& place, const Window& slot) {
  if (kept_group_ < 0) {
    const auto first = unit_.ranks.begin() + index_ / unit_.kept_over * unit_.kept_over;
    kept_group_ = builder_.group(unit_.group + "_kept", {first, first + unit_.kept_over});
  }
  place_replicated(place, slot);
  const std::int64_t padded = unit_.padded_numel(place.count);
  builder_.add(builder_.stream("fsdp"),
               AllGather{kept_group_, kept(place).flat(0, padded / unit_.kept_over),
                         slot.flat(place.count * unit_.replicated, padded)},
               "unshard what is kept");
}

// The elements that no gather brings.
void UnshardWriter::place_replicated(const Place& place, const Window& slot) {
  const std::int64_t replicated = place.count * unit_.replicated;
  if (replicated == 0) return;
  const View in = owned(shards(), place).flat(0, replicated), out = slot.flat(0, replicated);
  if (unit_.shard_dtype == unit_.dtype) {
    builder_.add(builder_.stream("fsdp"), Copy{in, out}, "place small tensors");
  } else {
    builder_.add(builder_.stream("fsdp"), Cast{in, out}, "cast small tensors");
  }
}

Window UnshardWriter::slot(const Place& place) {
  const std::int64_t numel = unit_.slot_numel(unit_.pieces_of(0));
  const BufferId buffer =
      once(slots_, BufferKind::temporary, str("unsharded/", unit_.name), unit_.dtype, gather_slots() * numel);
  return in_slot(buffer, numel, place.turn, gather_slots());
}

Window UnshardWriter::kept(const Place& place) {
  const auto size = [&](std::int64_t count) {
    return unit_.kept_over == 1 ? unit_.slot_numel(count) : unit_.padded_numel(count) / unit_.kept_over;
  };
  return in_stack(once(kept_, BufferKind::temporary, str("unsharded/", unit_.name, " kept"), unit_.dtype,
                       unit_.of_all_buckets(size)),
                  size(unit_.bucket), place.bucket);
}

// ---- gradients ----

Window UnshardWriter::whole_gradients(StackIndex piece) {
  const std::string name = str(unit_.resident_sums ? unit_.resident_gradients : "gradients", "/", unit_.name);
  const BufferId buffer =
      once(gradients_, BufferKind::inout, name, unit_.gradient_dtype, unit_.whole_gradients_numel());
  if (unit_.resident) return in_stack(buffer, unit_.numel, piece);
  const Place place = place_of(piece, piece, /*backward=*/true);
  return piece_of(in_stack(buffer, unit_.slot_numel(unit_.bucket), place.bucket), place);
}

// If gradients are cast, the copy is what travels, and the next bucket may overwrite the original. If not,
// the original travels, and the next bucket needs another slot.
Window UnshardWriter::gradient_slot(const Place& place) {
  const int count = casts_gradients() ? 1 : gradient_slots();
  const std::int64_t numel = unit_.slot_numel(unit_.pieces_of(0));
  const BufferId buffer = once(gradients_made_, BufferKind::temporary,
                               str("unsharded/", unit_.name, " gradients"), unit_.dtype, count * numel);
  return in_slot(buffer, numel, place.turn, count);
}

GradientPlace UnshardWriter::gradient(StackIndex piece, StackIndex turn) {
  if (unit_.adds_gradients()) return {whole_gradients(piece), true};
  if (!unit_.has_whole_gradients()) {
    const Place place = place_of(piece, turn, /*backward=*/true);
    return {piece_of(gradient_slot(place), place), false};
  }
  const BufferId buffer = once(gradients_made_, BufferKind::temporary,
                               str("unsharded/", unit_.name, " gradients"), unit_.dtype, unit_.numel);
  return {Window{buffer}, false};
}

void UnshardWriter::reduce(StackIndex piece, StackIndex turn, bool more) {
  if (!unit_.adds_gradients()) {
    const Place place = place_of(piece, turn, /*backward=*/true);
    if (unit_.has_whole_gradients())
      add_to_whole(piece, gradient(piece, turn).window);
    else if (place.position == 0)  // the last of its bucket that the pass visits
      reduce_and_scatter(place);
  }
  if (unit_.sends_gradients && !more) send_to_host(piece);
}

void UnshardWriter::reduce_and_scatter(const Place& place) {
  const StreamId stream = builder_.stream("fsdp_reduce");
  if (reduce_group_ < 0) reduce_group_ = builder_.group(unit_.group + "_reduce", unit_.ranks);
  const std::int64_t replicated = place.count * unit_.replicated, made = place.count * unit_.numel,
                     shard = unit_.shard_numel(place.count), padded = unit_.padded_numel(place.count),
                     all = replicated + padded;
  Window travelling = gradient_slot(place);
  if (casts_gradients()) {
    const Window wide{once(cast_, BufferKind::temporary, str("unsharded/", unit_.name, " cast gradients"),
                           unit_.gradient_dtype, unit_.slot_numel(unit_.pieces_of(0)))};
    builder_.add(stream, Cast{travelling.flat(0, made), wide.flat(0, made)}, "cast gradients");
    travelling = wide;
  }
  if (all > made) builder_.add(stream, Fill{travelling.flat(made, all - made), 0}, "pad gradients");
  const View block = travelling.flat(own_block(place.count), shard);
  builder_.add(stream,
               ReduceScatter{reduce_group_, ReduceOp::sum, travelling.flat(replicated, padded), block},
               "reduce gradients");
  const Window sums = owned(once(gradients_, BufferKind::inout, str("gradients/", unit_.name),
                                 unit_.gradient_dtype, unit_.num_owned()),
                            place);
  builder_.add(stream, Accumulate{ReduceOp::sum, block, sums.flat(replicated, shard)}, "add gradients");
  if (replicated > 0)
    builder_.add(stream, Accumulate{ReduceOp::sum, travelling.flat(0, replicated), sums.flat(0, replicated)},
                 "add gradients of small tensors");
}

// The last bucket that is complete when the piece is: of a bucket its first piece.
void UnshardWriter::send_to_host(StackIndex piece) {
  const BufferId host =
      once(host_gradients_, BufferKind::output, str("host/gradients/", unit_.name), unit_.gradient_dtype,
           unit_.has_whole_gradients() ? unit_.whole_numel() : unit_.num_owned());
  const auto send = [&](const View& from, const View& to) {
    builder_.add(builder_.stream("to_host"), Copy{from, to}, "gradients to the host");
  };
  if (unit_.has_whole_gradients()) {
    return send(in_stack(gradients_, unit_.numel, piece).flat(0, unit_.numel),
                in_stack(host, unit_.numel, piece).flat(0, unit_.numel));
  }
  const Place place = place_of(piece, piece, /*backward=*/true);
  if (place.position > 0) return;
  const std::int64_t numel = unit_.owned_numel(place.count);
  send(owned(gradients_, place).flat(0, numel), owned(host, place).flat(0, numel));
}

// For a gradient dtype in which products cannot accumulate: cast first, then add.
void UnshardWriter::add_to_whole(StackIndex piece, const Window& gradient) {
  const StreamId compute = builder_.stream("compute");
  const View cast =
      flat_view(once(cast_, BufferKind::temporary, str("unsharded/", unit_.name, " cast gradients"),
                     unit_.gradient_dtype, unit_.numel),
                0, unit_.numel);
  builder_.add(compute, Cast{gradient.flat(0, unit_.numel), cast}, "cast gradients");
  // Small tensors of a bucket's piece lie apart from the others.
  const Window whole = whole_gradients(piece);
  const auto add = [&](std::int64_t begin, std::int64_t end) {
    if (begin == end) return;
    builder_.add(
        compute,
        Accumulate{ReduceOp::sum, flat_view(cast.buffer, begin, end - begin), whole.flat(begin, end - begin)},
        "add gradients");
  };
  add(0, whole.front), add(whole.front, unit_.numel);
}

}  // namespace cp

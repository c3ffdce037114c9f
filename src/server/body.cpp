#include "server/body.h"

#include <algorithm>

#include <fmt/format.h>

#include "base/check.h"
#include "server/chunks.h"

namespace droidspeak {

namespace {

class BodyReader {
 public:
  BodyReader(Connection& connection, const BodyLimits& limits, Budget& budget)
      : connection_(connection),
        limits_(limits),
        share_(std::make_shared<Budget::Share>(budget)),
        free_bytes_(limits.free_bytes),
        deadline_(Connection::Clock::now() + limits.timeout) {}

  Body read(const BodyFraming& framing) {
    bool is_read =
        framing.kind == BodyFraming::Kind::kChunked ? read_chunks() : read_exactly(framing.length);
    if (is_read) {
      body_.budget = share_;
    } else {
      body_.text = std::string();
    }
    return std::move(body_);
  }

 private:
  bool fail(int status, std::string problem) {
    body_.status = status;
    body_.problem = std::move(problem);
    return false;
  }

  // Until there are bytes in the connection's buffer.
  bool fill() {
    switch (connection_.fill(deadline_)) {
      case Connection::ReadStatus::kOk:
        return true;
      case Connection::ReadStatus::kTimeout:
        return fail(408,
                    fmt::format("The request body did not arrive within {} seconds; {} bytes did.",
                                limits_.timeout.count() / 1000, body_.text.size()));
      case Connection::ReadStatus::kEnd:
        return fail(400, fmt::format("The request body ended too early, after {} bytes.",
                                     body_.text.size()));
    }
    panic("unknown Connection::ReadStatus");
  }

  bool fail_too_large() {
    return fail(413,
                fmt::format("The request body is larger than the {} bytes this server accepts.",
                            limits_.max_bytes));
  }

  bool pay(size_t bytes) {
    size_t free = std::min(bytes, free_bytes_);
    free_bytes_ -= free;
    if (share_->take(bytes - free)) return true;
    return fail(503, "The server is reading too many large requests at the moment.");
  }

  bool read_exactly(size_t length) {
    if (length > limits_.max_bytes) return fail_too_large();
    body_.text.reserve(length);
    while (length > 0) {
      if (!fill()) return false;
      std::string_view piece = connection_.buffered().substr(0, length);
      if (!pay(piece.size())) return false;
      body_.text.append(piece);
      length -= piece.size();
      connection_.consume(piece.size());
    }
    return true;
  }

  bool read_chunks() {
    ChunkDecoder decoder(limits_.max_bytes);
    while (decoder.state() == ChunkDecoder::State::kMore) {
      if (!fill()) return false;
      size_t before = body_.text.size();
      connection_.consume(decoder.add(connection_.buffered(), body_.text));
      if (!pay(body_.text.size() - before)) return false;
    }
    if (decoder.state() == ChunkDecoder::State::kTooLarge) return fail_too_large();
    if (decoder.state() == ChunkDecoder::State::kDone) return true;
    return fail(400, fmt::format("The chunked request body has {}.", decoder.problem()));
  }

  Connection& connection_;
  const BodyLimits& limits_;
  const std::shared_ptr<Budget::Share> share_;
  size_t free_bytes_;  // that are left
  const Connection::Clock::time_point deadline_;
  Body body_;
};

}  // namespace

Body read_body(Connection& connection,
               const BodyFraming& framing,
               const BodyLimits& limits,
               Budget& budget) {
  if (framing.kind == BodyFraming::Kind::kNone) return {};
  return BodyReader(connection, limits, budget).read(framing);
}

}  // namespace droidspeak

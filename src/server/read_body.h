// Every body becomes a request in one of the places for that, and its text is let go of.
#pragma once

#include <string>
#include <utility>

#include "server/service.h"

namespace droidspeak {

template <class Request>
struct ReadBody {
  Request wanted;
  WorkSlots::Slot slot;  // held until what is wanted is in tokens
};

template <class Request, class Text>
ApiResult<ReadBody<Request>> read_body(Service& service,
                                       HttpRequest& request,
                                       ApiResult<Request> (*parse)(Text)) {
  ApiResult<WorkSlots::Slot> slot = service.take_work_slot(request);
  if (!slot) return slot.error();
  ApiResult<Request> wanted = parse(std::move(request.body));
  request.release_body();
  if (!wanted) return wanted.error();
  return ReadBody<Request>{std::move(*wanted), std::move(*slot)};
}

}  // namespace droidspeak

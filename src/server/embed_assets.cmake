# cmake -DOUTPUT=assets.cpp "-DFILES=url=path;url=path" -P embed_assets.cmake
# Writes the files as byte arrays behind embedded_assets().
set(types html text/html js text/javascript css text/css svg image/svg+xml json application/json)
set(arrays "")
set(table "")
set(index 0)
foreach(entry IN LISTS FILES)
  string(REGEX MATCH "^([^=]+)=(.+)$" matched "${entry}")
  set(url "${CMAKE_MATCH_1}")
  set(path "${CMAKE_MATCH_2}")
  string(REGEX MATCH "[^.]+$" extension "${path}")
  list(FIND types "${extension}" at)
  math(EXPR at "${at} + 1")
  list(GET types ${at} type)
  file(READ "${path}" hex HEX)
  file(SHA256 "${path}" digest)
  string(SUBSTRING "${digest}" 0 32 digest)
  string(REGEX REPLACE "(..)" "'\\\\x\\1'," bytes "${hex}")
  string(APPEND arrays "constexpr char kFile${index}[] = {${bytes}'\\0'};\n")
  string(APPEND table "    Asset{\"${url}\", \"${type}; charset=utf-8\", {kFile${index}, sizeof kFile${index} - 1}, \"\\\"${digest}\\\"\"},\n")
  math(EXPR index "${index} + 1")
endforeach()
file(WRITE "${OUTPUT}" "#include \"server/assets.h\"

namespace droidspeak {

namespace {

${arrays}
constexpr Asset kAssets[] = {
${table}};

}  // namespace

std::span<const Asset> embedded_assets() {
  return kAssets;
}

}  // namespace droidspeak
")

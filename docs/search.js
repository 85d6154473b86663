// A query of the search consists of words, as the pages do: what separates words in mkdocs.yml's `separator` separates
// them here. Otherwise --resize_shorter would mean "without resize_shorter", and s3:// a field of the index.
const post = Worker.prototype.postMessage;
Worker.prototype.postMessage = function (message, ...rest) {
  const QUERY = 2; // Material's SearchMessageType
  if (message?.type === QUERY) {
    message = {...message, data: message.data.replace(/[\s\-,.:;/=<>()\[\]{}`*]+/g, " ")};
  }
  return post.call(this, message, ...rest);
};

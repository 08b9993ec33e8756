// What a reader types, as the search understands it. lunr takes the colon of "s3://" for the name of a field and drops what
// follows, and the site's search takes each word for a beginning, so "how" finds "however" and "I" finds "int8".
(() => {
  const IGNORED = new Set(
    ("a an and are as at be by can do does for from get has have how i if in into is it its many me much my not of on or " +
      "our that the their there they this to was we what when where which while who why will with you your").split(" "),
  );

  function readQuery(text) {
    const plain = text.replace(/(?<=^|\s)-+|[:/?!;,()[\]`]+|\.(?=\s|$)/g, " ").replace(/(?<=^|\s)-+/g, "");
    const words = plain.split(/\s+/).filter(Boolean);
    const kept = words.filter((word) => !IGNORED.has(word.toLowerCase()));
    return (kept.length ? kept : words).join(" ");
  }

  const QUERY = 2; // the type of a message with a query, in the search of Material for MkDocs 9
  const post = Worker.prototype.postMessage;
  Worker.prototype.postMessage = function (message, ...rest) {
    const asked = message?.type === QUERY && typeof message.data === "string";
    return post.call(this, asked ? { ...message, data: readQuery(message.data) } : message, ...rest);
  };
})();

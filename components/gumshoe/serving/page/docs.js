// Shows the OpenAPI description with Swagger UI. The validator would send its address to another server.
"use strict";
SwaggerUIBundle({
  url: "openapi.json",
  dom_id: "#api",
  deepLinking: true,
  tryItOutEnabled: true,
  validatorUrl: null,
});
